#include "models/flux/flux_transformer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "io/safetensors.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::models {
namespace {

// The goldens' grid: 3 x 4 image tokens.
constexpr int64_t kRows = 3, kColumns = 4;

FluxConfig read_config(const std::filesystem::path& folder) {
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  return FluxConfig::parse(json);
}

FluxTransformer load(const std::filesystem::path& folder, at::ScalarType dtype = at::kFloat) {
  const auto store = io::WeightStore::open(folder);
  return FluxTransformer(read_config(folder), store, {.dtype = dtype});
}

at::Tensor run(const FluxTransformer& model, const io::SafetensorsFile& golden,
               nn::BlockRunner& runner,
               const attention::Attention& attention = attention::native_attention()) {
  const auto input = [&](const char* name) {
    return golden.tensor(std::string("transformer.") + name).to(model.dtype());
  };
  const bool guided = model.config().guidance_embeds;
  const FluxSteps steps = {.timesteps = input("timestep").unsqueeze(0),
                           .guidance = guided ? input("guidance") : at::Tensor()};
  const FluxConditioning conditioning =
      model.prepare(input("encoder"), input("pooled"), steps, kRows, kColumns);
  return model.forward(input("latents"), conditioning, runner, attention, {});
}

class FluxTransformerGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    test::make_tiny_checkpoint(GetParam(), folder_.path() / "model");
    golden_ =
        std::make_unique<io::SafetensorsFile>(test::golden(GetParam()) / "expected.safetensors");
  }
  std::filesystem::path transformer() const { return folder_.path() / "model" / "transformer"; }

  test::TempDir folder_;
  std::unique_ptr<io::SafetensorsFile> golden_;
};

// fp32 sums in another order than diffusers' differ by a few ulp per layer; 1e-5 is the bar.
TEST_P(FluxTransformerGolden, Fp32EqualsDiffusers) {
  nn::PlainBlockRunner runner;
  const at::Tensor got = run(load(transformer()), *golden_, runner);
  EXPECT_LE(test::relative_error(got, golden_->tensor("transformer.out_fp32")), 1e-5);
}

// bf16 rounds to 8 bits after every operation, here in other places than diffusers does (fused
// steps round once): a few roundings of 2^-8 apart. Against fp32 the gap is far wider for both,
// since the timestep itself is rounded (750 becomes 752).
TEST_P(FluxTransformerGolden, Bf16StaysCloseToDiffusersBf16) {
  nn::PlainBlockRunner runner;
  const at::Tensor got = run(load(transformer(), at::kBFloat16), *golden_, runner);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_LE(test::relative_error(got, golden_->tensor("transformer.out_bf16")), 2e-2);
}

// The runner alone decides which blocks run: a model that called them itself would ignore it.
TEST_P(FluxTransformerGolden, BlocksRunOnlyThroughTheRunner) {
  class SkippingRunner final : public nn::BlockRunner {
   public:
    nn::Streams run(const std::vector<nn::BlockList>& lists, nn::Streams streams,
                    const nn::BlockContext&, const nn::StepInfo&) override {
      for (const nn::BlockList& list : lists) seen += list.blocks.size();
      return streams;
    }
    size_t seen = 0;
  };
  const FluxTransformer model = load(transformer());
  SkippingRunner skipping;
  const at::Tensor skipped = run(model, *golden_, skipping);
  EXPECT_EQ(static_cast<int64_t>(skipping.seen),
            model.config().num_layers + model.config().num_single_layers);
  nn::PlainBlockRunner plain;
  EXPECT_GT(test::relative_error(skipped, run(model, *golden_, plain)), 0.1);
}

// Every layer has one attention, and it is the object that the caller handed in.
TEST_P(FluxTransformerGolden, AttentionGoesThroughTheSeam) {
  class CountingAttention final : public attention::Attention {
   public:
    attention::Result operator()(const attention::Inputs& in) const override {
      ++calls;
      return inner(in);
    }
    mutable int64_t calls = 0;
    const attention::Attention& inner = attention::native_attention();
  };
  const FluxTransformer model = load(transformer());
  nn::PlainBlockRunner runner;
  CountingAttention counting;
  run(model, *golden_, runner, counting);
  EXPECT_EQ(counting.calls, model.config().num_layers + model.config().num_single_layers);
}

INSTANTIATE_TEST_SUITE_P(Configs, FluxTransformerGolden,
                         ::testing::Values("flux_guidance", "flux_plain", "flux_double_only"),
                         [](const auto& test) { return std::string(test.param); });

TEST(FluxTransformer, ListsEveryMissingShapedAndLeftOverTensor) {
  test::TempDir folder;
  test::make_tiny_checkpoint("flux_double_only", folder.path() / "model");
  const std::filesystem::path transformer = folder.path() / "model" / "transformer";
  const std::filesystem::path file = transformer / "diffusion_pytorch_model.safetensors";
  std::map<std::string, at::Tensor> tensors;
  {
    const io::SafetensorsFile whole(file);
    for (const auto& [name, entry] : whole.header().tensors) {
      tensors[name] = whole.tensor(name).clone();
    }
  }
  tensors.erase("x_embedder.bias");
  tensors["proj_out.bias"] = at::zeros({3});
  tensors["transformer_blocks.1.ff.net.2.bias"] = at::zeros({2});
  io::write_safetensors(file, tensors);
  try {
    load(transformer);
    FAIL() << "a damaged checkpoint was loaded";
  } catch (const WeightError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("x_embedder.bias"), std::string::npos) << text;
    EXPECT_NE(text.find("proj_out.bias: the config asks for [16], the file has [3]"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("transformer_blocks.1.ff.net.2.bias [2]"), std::string::npos) << text;
  }
}

TEST(FluxTransformer, RefusesInputsOfAnotherWidth) {
  test::TempDir folder;
  test::make_tiny_checkpoint("flux_double_only", folder.path() / "model");
  const FluxTransformer model = load(folder.path() / "model" / "transformer");
  const auto prepare = [&](const at::Tensor& encoder, const at::Tensor& pooled,
                           const at::Tensor& guidance = {}) {
    return model.prepare(encoder, pooled, {.timesteps = at::zeros({3, 1}), .guidance = guidance}, 2,
                         2);
  };
  EXPECT_THROW(prepare(at::zeros({1, 5, 31}), at::zeros({1, 24})), InputError);
  EXPECT_THROW(prepare(at::zeros({1, 5, 32}), at::zeros({1, 23})), InputError);
  EXPECT_THROW(prepare(at::zeros({2, 5, 32}), at::zeros({1, 24})), InputError);
  EXPECT_THROW(prepare(at::zeros({1, 5, 32}), at::zeros({1, 24}), at::full({1}, 3.5)), InputError)
      << "guidance for a model that embeds none";

  nn::PlainBlockRunner runner;
  const auto conditioning = prepare(at::zeros({1, 5, 32}), at::zeros({1, 24}));
  const auto forward = [&](int64_t step) {
    return model.forward(at::zeros({1, 4, 16}), conditioning, runner, attention::native_attention(),
                         {.step = step, .num_steps = 3});
  };
  EXPECT_EQ(forward(2).sizes(), at::IntArrayRef({1, 4, 16}));
  EXPECT_THROW(forward(3), InputError) << "a step that was not prepared for";
}

// Vectors are projected for many steps at once: each step must get its own, whichever step came
// first and however many steps one product covers.
TEST_P(FluxTransformerGolden, StepsOfOneRunAreThoseOfRunsOfOneStep) {
  const FluxTransformer model = load(transformer());
  const auto input = [&](const char* name) {
    return golden_->tensor(std::string("transformer.") + name);
  };
  constexpr int64_t kSteps = 2 * nn::ModulationTable::kStepsAtOnce + 3;
  const at::Tensor timesteps = at::linspace(1, 0.1, kSteps).unsqueeze(1);
  const at::Tensor guidance = model.config().guidance_embeds ? input("guidance") : at::Tensor();
  const auto prepare = [&](const at::Tensor& times) {
    return model.prepare(input("encoder"), input("pooled"),
                         {.timesteps = times, .guidance = guidance}, kRows, kColumns);
  };
  nn::PlainBlockRunner runner;
  const FluxConditioning together = prepare(timesteps);
  // Steps 0 to 2, then as if caching had skipped some, the last, and one that was passed by.
  for (const int64_t step : {0, 1, 2, 9, 17, 24, 34, 8}) {
    const auto forward = [&](const FluxConditioning& conditioning, int64_t index) {
      return model.forward(input("latents"), conditioning, runner, attention::native_attention(),
                           {.step = index, .num_steps = kSteps});
    };
    const at::Tensor alone = forward(prepare(timesteps.narrow(0, step, 1)), 0);
    // Products of more rows may add in another order.
    EXPECT_LE(test::relative_error(forward(together, step), alone), 1e-6) << "step " << step;
  }
}

FluxConfig parse(const std::string& text) {
  io::JsonConfig json(nlohmann::json::parse(text), "test");
  return FluxConfig::parse(json);
}

TEST(FluxConfig, FillsDefaultsOfFlux1) {
  const FluxConfig c = parse(R"({"_class_name": "FluxTransformer2DModel"})");
  EXPECT_EQ(c.num_layers, 19);
  EXPECT_EQ(c.num_single_layers, 38);
  EXPECT_EQ(c.width(), 3072);
  EXPECT_FALSE(c.guidance_embeds);
  EXPECT_EQ(c.out_channels, 64);
}

TEST(FluxConfig, RefusesWhatItCannotHonour) {
  const std::string head = R"({"_class_name": "FluxTransformer2DModel", )";
  EXPECT_THROW(parse(R"({"_class_name": "UNet2DConditionModel"})"), ConfigError);
  EXPECT_THROW(parse(head + R"("pos_embed_theta": 5000})"), ConfigError) << "unknown key";
  EXPECT_THROW(parse(head + R"("num_layers": -1})"), ConfigError);
  EXPECT_THROW(parse(head + R"("num_layers": 2.5})"), ConfigError);
  EXPECT_THROW(parse(head + R"("num_attention_heads": 0})"), ConfigError);
  EXPECT_THROW(parse(head + R"("attention_head_dim": "128"})"), ConfigError);
  EXPECT_THROW(parse(head + R"("axes_dims_rope": [16, 56, 57]})"), ConfigError) << "odd";
  EXPECT_THROW(parse(head + R"("axes_dims_rope": [16, 56]})"), ConfigError) << "two axes";
  EXPECT_THROW(parse(head + R"("axes_dims_rope": [16, 56, 54]})"), ConfigError) << "wrong sum";
  EXPECT_THROW(parse(head + R"("patch_size": 2})"), ConfigError);
}

}  // namespace
}  // namespace cachedit::models
