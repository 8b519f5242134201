#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cachedit/cachedit.h"
#include "io/safetensors.h"
#include "pipelines/latents.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

using nlohmann::json;

/// The picture of make_flux.py's test_picture().
Image test_picture(int64_t width, int64_t height) {
  Image image{.width = width, .height = height, .pixels = {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      image.pixels.push_back(static_cast<uint8_t>((x * 7 + y * 3) % 256));
      image.pixels.push_back(static_cast<uint8_t>((x * y) % 256));
      image.pixels.push_back(static_cast<uint8_t>(((255 - x * 5 - y) % 256 + 256) % 256));
    }
  }
  return image;
}

GenerateRequest request_of(const json& run) {
  GenerateRequest r;
  r.prompt = run.at("prompt").get<std::vector<std::string>>();
  r.height = run.at("height").get<int64_t>();
  r.width = run.at("width").get<int64_t>();
  r.seed = run.at("seed").get<uint64_t>();
  if (run.contains("steps")) r.num_inference_steps = run["steps"].get<int64_t>();
  if (run.contains("sigmas")) r.sigmas = run["sigmas"].get<std::vector<double>>();
  r.guidance_scale = run.value("guidance_scale", r.guidance_scale);
  r.true_cfg_scale = run.value("true_cfg_scale", r.true_cfg_scale);
  if (run.contains("negative_prompt")) {
    r.negative_prompt = run["negative_prompt"].get<std::vector<std::string>>();
  }
  r.num_images_per_prompt = run.value("num_images_per_prompt", r.num_images_per_prompt);
  if (run.contains("image")) {
    r.image = test_picture(run["image"][0].get<int64_t>(), run["image"][1].get<int64_t>());
    r.strength = run.at("strength").get<double>();
  }
  return r;
}

/// The bar for pictures: 99.9 % of the samples equal, none more than 2 apart.
void expect_same_picture(const std::vector<Image>& got, const at::Tensor& want) {
  ASSERT_EQ(static_cast<int64_t>(got.size()), want.size(0));
  int64_t different = 0;
  for (int64_t i = 0; i < want.size(0); ++i) {
    const Image& image = got[static_cast<size_t>(i)];
    ASSERT_EQ(image.height, want.size(1));
    ASSERT_EQ(image.width, want.size(2));
    const at::Tensor expected = want.select(0, i).contiguous();
    const auto* pixel = expected.const_data_ptr<uint8_t>();
    for (size_t k = 0; k < image.pixels.size(); ++k) {
      const int difference = std::abs(int{image.pixels[k]} - int{pixel[k]});
      ASSERT_LE(difference, 2) << "sample " << k << " of picture " << i;
      different += difference != 0;
    }
  }
  EXPECT_LE(static_cast<double>(different), 0.001 * static_cast<double>(want.numel()));
}

class FluxGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path model() {
    if (std::string(GetParam()) == "flux_demo") return test::demo_model();
    test::make_tiny_checkpoint(GetParam(), folder_.path() / "model");
    return folder_.path() / "model";
  }
  test::TempDir folder_;
};

TEST_P(FluxGolden, WholeRunsEqualDiffusers) {
  const auto pipeline = load_pipeline(model().string(), {.dtype = "fp32", .device = "cpu"});
  const io::SafetensorsFile golden(test::golden(GetParam()) / "expected.safetensors");
  const json runs = json::parse(test::read_bytes(test::golden(GetParam()) / "runs.json"));
  for (const auto& [name, run] : runs.items()) {
    SCOPED_TRACE(name);
    GenerateRequest request = request_of(run);
    const GenerateResult result = pipeline->generate(request);
    expect_same_picture(result.images, golden.tensor(name + ".image"));
    request.output_type = OutputType::kLatent;
    // Differences of single steps add up over the run: 1e-4 where one step is held to 1e-5.
    EXPECT_LE(
        test::relative_error(pipeline->generate(request).latents, golden.tensor(name + ".latents")),
        1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, FluxGolden,
                         ::testing::Values("flux_demo", "flux_guidance", "flux_plain",
                                           "flux_double_only"),
                         [](const auto& test) { return std::string(test.param); });

class FluxDemo : public ::testing::Test {
 protected:
  static const Pipeline& pipeline(const std::string& dtype = "fp32") {
    static std::map<std::string, std::unique_ptr<Pipeline>> loaded;
    auto& entry = loaded[dtype];
    if (!entry) {
      entry = load_pipeline(test::demo_model().string(), {.dtype = dtype, .device = "cpu"});
    }
    return *entry;
  }
  static GenerateRequest apple() {
    GenerateRequest request;
    request.prompt = {"red apple"};
    request.num_inference_steps = 2;
    request.height = request.width = 32;
    request.seed = 7;
    return request;
  }
};

TEST_F(FluxDemo, Bf16StaysWithin30DbOfFp32) {
  GenerateRequest request = apple();
  request.height = request.width = 128;
  request.num_inference_steps = 20;
  // Noise drawn in bf16 is other noise: both runs start from the fp32 one.
  at::Generator generator = pipelines::make_generator(0);
  request.latents = pipelines::pack_latents(
      pipelines::draw_noise({1, 16, 16, 16}, generator, at::kFloat, at::kCPU));
  const Image exact = pipeline("fp32").generate(request).images[0];
  const Image rounded = pipeline("bf16").generate(request).images[0];
  EXPECT_GE(compare_images(exact, rounded).psnr, 30.0);
}

TEST_F(FluxDemo, SameSeedSamePictureAndCopiesDiffer) {
  GenerateRequest request = apple();
  const GenerateResult one = pipeline().generate(request);
  EXPECT_EQ(one.images[0].pixels, pipeline().generate(request).images[0].pixels);
  request.num_images_per_prompt = 2;
  const GenerateResult two = pipeline().generate(request);
  ASSERT_EQ(two.images.size(), 2u);
  EXPECT_GE(compare_images(two.images[0], one.images[0]).psnr, 60.0)
      << "the first copy is the picture of a single one";
  EXPECT_NE(two.images[0].pixels, two.images[1].pixels);
}

TEST_F(FluxDemo, WithoutSeedEveryRunDiffersAndSaysItsSeed) {
  GenerateRequest request = apple();
  request.seed.reset();
  const GenerateResult first = pipeline().generate(request);
  const GenerateResult second = pipeline().generate(request);
  EXPECT_NE(first.images[0].pixels, second.images[0].pixels);
  request.seed = first.seed;
  EXPECT_EQ(pipeline().generate(request).images[0].pixels, first.images[0].pixels);
}

TEST_F(FluxDemo, FloorsSizesToMultiplesOf16) {
  GenerateRequest request = apple();
  request.height = 39;
  request.width = 47;
  const GenerateResult result = pipeline().generate(request);
  EXPECT_EQ(result.height, 32);
  EXPECT_EQ(result.width, 32);
  EXPECT_EQ(result.images[0].width, 32);
}

TEST_F(FluxDemo, DefaultsComeFromTheCheckpoint) {
  GenerateRequest request = apple();
  request.height.reset();
  request.width.reset();
  request.num_inference_steps = 1;
  const GenerateResult result = pipeline().generate(request);
  EXPECT_EQ(result.height, 128);
  EXPECT_EQ(result.width, 128);
  EXPECT_EQ(result.max_sequence_length, 24);
}

TEST_F(FluxDemo, ReportsEveryStepAndStopsWhenTold) {
  GenerateRequest request = apple();
  request.num_inference_steps = 4;
  std::vector<int64_t> steps;
  request.on_step = [&](const StepProgress& step) {
    EXPECT_EQ(step.num_steps, 4);
    steps.push_back(step.step);
    return true;
  };
  EXPECT_EQ(pipeline().generate(request).step_seconds.size(), 4u);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2, 3, 4));
  steps.clear();
  request.on_step = [&](const StepProgress& step) {
    steps.push_back(step.step);
    return step.step < 2;
  };
  EXPECT_THROW(pipeline().generate(request), Cancelled);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2));
}

TEST_F(FluxDemo, EmbeddingsStandInForPrompts) {
  GenerateRequest request = apple();
  request.prompt.clear();
  request.prompt_embeds = at::zeros({2, 24, 128});
  request.pooled_prompt_embeds = at::zeros({2, 128});
  EXPECT_EQ(pipeline().generate(request).images.size(), 2u);
  request.prompt_embeds = at::zeros({2, 24, 127});
  EXPECT_THROW(pipeline().generate(request), InputError);
}

TEST_F(FluxDemo, GivenLatentsMustFit) {
  GenerateRequest request = apple();
  request.latents = at::zeros({1, 5, 64});
  EXPECT_THROW(pipeline().generate(request), InputError);
  request.latents = at::zeros({1, 4, 64});
  EXPECT_EQ(pipeline().generate(request).images.size(), 1u);
}

TEST_F(FluxDemo, ImageToImageRefusesStrengthThatLeavesNoStep) {
  GenerateRequest request = apple();
  request.image = test_picture(32, 32);
  request.strength = 1e-20;
  EXPECT_THROW(pipeline().generate(request), InputError);
}

TEST_F(FluxDemo, TiledAndSlicedDecodingGiveTheSamePicture) {
  GenerateRequest request = apple();
  request.num_images_per_prompt = 2;
  const auto plain = pipeline().generate(request).images;
  request.vae_slicing = true;
  request.vae_tiling = true;  // 32 pixels fit into one tile of 128
  const auto sliced = pipeline().generate(request).images;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_GE(compare_images(plain[i], sliced[i]).psnr, 60.0);
  }
}

}  // namespace
}  // namespace cachedit
