#include "pipelines/flux_request.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "cachedit/error.h"

namespace cachedit::pipelines {
namespace {

constexpr FluxLimits kFlux1 = {
    .vae_scale_factor = 8, .sample_size = 1024, .default_sequence_length = 512};

GenerateRequest prompted() {
  GenerateRequest request;
  request.prompt = {"a cat"};
  return request;
}

/// Plans a request changed by `change` and returns the error's text, "" if there is none.
template <class Change>
std::string error_of(const Change& change) {
  GenerateRequest request = prompted();
  change(request);
  try {
    plan_flux_request(request, kFlux1);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(FluxRequest, FillsDefaults) {
  const FluxPlan plan = plan_flux_request(prompted(), kFlux1);
  EXPECT_EQ(plan.height, 1024);
  EXPECT_EQ(plan.width, 1024);
  EXPECT_EQ(plan.grid_height, 64);
  EXPECT_EQ(plan.max_sequence_length, 512);
  EXPECT_EQ(plan.num_inference_steps, 28);
  ASSERT_EQ(plan.sigmas.size(), 28u);
  EXPECT_EQ(plan.sigmas.front(), 1.0);
  EXPECT_EQ(plan.sigmas.back(), 1.0 / 28);
  EXPECT_EQ(plan.prompt_2, plan.prompt);
  EXPECT_FALSE(plan.true_cfg);
}

TEST(FluxRequest, OneStepStartsAtFullNoise) {
  GenerateRequest request = prompted();
  request.num_inference_steps = 1;
  EXPECT_EQ(plan_flux_request(request, kFlux1).sigmas, std::vector<double>{1.0});
}

TEST(FluxRequest, FloorsFullHdToMultiplesOf16) {
  GenerateRequest request = prompted();
  request.width = 1920;
  request.height = 1080;
  const FluxPlan plan = plan_flux_request(request, kFlux1);
  EXPECT_EQ(plan.height, 1072);
  EXPECT_EQ(plan.width, 1920);
  EXPECT_EQ(plan.grid_height, 67);
  EXPECT_EQ(plan.grid_width, 120);
  EXPECT_EQ(plan.grid_height * plan.grid_width, 8040);
}

TEST(FluxRequest, RefusesSizesOfNoTokenAndAbsurdOnes) {
  for (const int64_t side : {int64_t{-64}, int64_t{0}, int64_t{8}, int64_t{15}, int64_t{1} << 40}) {
    const std::string text = error_of([&](GenerateRequest& r) { r.height = side; });
    EXPECT_NE(text.find("height"), std::string::npos) << side;
    EXPECT_NE(text.find("got " + std::to_string(side)), std::string::npos) << text;
  }
  EXPECT_EQ(error_of([](GenerateRequest& r) { r.width = 17, r.height = 72; }), "");
}

TEST(FluxRequest, RefusesValuesOutOfRangeByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto names = [](const std::string& text, const char* field) {
    return text.find(field) != std::string::npos;
  };
  EXPECT_TRUE(names(error_of([](auto& r) { r.num_inference_steps = 0; }), "num_inference_steps"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.num_inference_steps = -3; }), "got -3"));
  EXPECT_TRUE(names(error_of([&](auto& r) { r.guidance_scale = nan; }), "guidance_scale"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.guidance_scale = -1; }), "guidance_scale"));
  EXPECT_TRUE(names(error_of([&](auto& r) { r.true_cfg_scale = nan; }), "true_cfg_scale"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.num_images_per_prompt = 0; }), "num_images"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.num_images_per_prompt = 1 << 20; }), "num_images"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.max_sequence_length = 513; }), "513"));
  EXPECT_TRUE(names(error_of([](auto& r) { r.max_sequence_length = 0; }), "max_sequence_length"));
  for (const double strength : {0.0, -0.1, 1.5, nan}) {
    EXPECT_TRUE(names(error_of([&](auto& r) {
                        r.image = Image{.width = 16, .height = 16, .pixels = {}};
                        r.strength = strength;
                      }),
                      "strength"));
  }
}

TEST(FluxRequest, RefusesSigmasThatAreNoSchedule) {
  const auto sigmas = [](std::vector<double> values) {
    return error_of([&](GenerateRequest& r) { r.sigmas = values; });
  };
  EXPECT_EQ(sigmas({1.0, 0.5, 0.1}), "");
  EXPECT_NE(sigmas({1.0, 0.5, 0.6}), "");
  EXPECT_NE(sigmas({1.5}), "");
  EXPECT_NE(sigmas({1.0, 0.0}), "");
  EXPECT_NE(sigmas({std::numeric_limits<double>::quiet_NaN()}), "");
  EXPECT_NE(error_of([](GenerateRequest& r) {
              r.sigmas = {1.0, 0.5}, r.num_inference_steps = 3;
            }),
            "");
}

TEST(FluxRequest, SigmasSetTheNumberOfSteps) {
  GenerateRequest request = prompted();
  request.sigmas = {1.0, 0.9, 0.5, 0.3, 0.1};
  EXPECT_EQ(plan_flux_request(request, kFlux1).num_inference_steps, 5);
}

// True CFG runs exactly when the scale is above 1 and a negative prompt, or both negative
// embeddings, are there.
TEST(FluxRequest, TrueCfgNeedsScaleAndNegative) {
  const auto cfg = [](double scale, bool prompt, bool embeds) {
    GenerateRequest request = prompted();
    request.true_cfg_scale = scale;
    if (prompt) request.negative_prompt = {""};
    if (embeds) {
      request.negative_prompt_embeds = at::zeros({1, 4, 8});
      request.negative_pooled_prompt_embeds = at::zeros({1, 8});
    }
    return plan_flux_request(request, kFlux1).true_cfg;
  };
  EXPECT_FALSE(cfg(1.0, true, false));
  EXPECT_FALSE(cfg(4.0, false, false));
  EXPECT_TRUE(cfg(4.0, true, false));
  EXPECT_TRUE(cfg(4.0, false, true));
  EXPECT_FALSE(cfg(1.0, false, true));
}

GenerateRequest embedded(int64_t batch, int64_t negative_batch) {
  GenerateRequest request;
  request.prompt_embeds = at::zeros({batch, 4, 8});
  request.pooled_prompt_embeds = at::zeros({batch, 8});
  request.negative_prompt_embeds = at::zeros({negative_batch, 4, 8});
  request.negative_pooled_prompt_embeds = at::zeros({negative_batch, 8});
  request.true_cfg_scale = 4;
  return request;
}

TEST(FluxRequest, EmbeddingsOfUnequalShapeAreRefusedUnderCfg) {
  EXPECT_NO_THROW(plan_flux_request(embedded(2, 2), kFlux1));
  EXPECT_THROW(plan_flux_request(embedded(2, 1), kFlux1), InputError);
  GenerateRequest off = embedded(2, 1);
  off.true_cfg_scale = 1;
  EXPECT_NO_THROW(plan_flux_request(off, kFlux1));
}

TEST(FluxRequest, EmbeddingsComeInPairsAndWithoutPrompts) {
  GenerateRequest request = embedded(1, 1);
  request.pooled_prompt_embeds = at::Tensor();
  EXPECT_THROW(plan_flux_request(request, kFlux1), InputError);
  request = embedded(1, 1);
  request.negative_pooled_prompt_embeds = at::Tensor();
  EXPECT_THROW(plan_flux_request(request, kFlux1), InputError);
  request = embedded(1, 1);
  request.prompt = {"a cat"};
  EXPECT_THROW(plan_flux_request(request, kFlux1), InputError);
  request = embedded(1, 1);
  request.negative_prompt = {"a dog"};
  EXPECT_THROW(plan_flux_request(request, kFlux1), InputError);
  EXPECT_THROW(plan_flux_request({}, kFlux1), InputError) << "neither prompt nor embeddings";
}

TEST(FluxRequest, NegativePromptIsOneOrOneForEach) {
  GenerateRequest request;
  request.prompt = {"a", "b", "c"};
  request.true_cfg_scale = 2;
  request.negative_prompt = {"x"};
  EXPECT_EQ(plan_flux_request(request, kFlux1).negative_prompt,
            (std::vector<std::string>{"x", "x", "x"}));
  request.negative_prompt = {"x", "y"};
  EXPECT_THROW(plan_flux_request(request, kFlux1), InputError);
}

}  // namespace
}  // namespace cachedit::pipelines
