#include "cachedit/inspect.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cachedit/error.h"
#include "cachedit/quantize.h"
#include "io/safetensors.h"
#include "quantize_types.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

namespace fs = std::filesystem;

const ComponentInfo& component(const CheckpointInfo& info, const std::string& name) {
  for (const ComponentInfo& c : info.components) {
    if (c.name == name) return c;
  }
  throw std::runtime_error("no component " + name);
}

TEST(Inspect, DescribesTheDemoModel) {
  const CheckpointInfo info = inspect_checkpoint(test::demo_model().string());
  EXPECT_EQ(info.class_name, "FluxPipeline");
  EXPECT_EQ(info.unsupported, "");
  ASSERT_EQ(info.components.size(), 7u);
  const ComponentInfo& transformer = component(info, "transformer");
  EXPECT_EQ(transformer.class_name, "FluxTransformer2DModel");
  EXPECT_EQ(transformer.dtype, "bf16");
  EXPECT_NEAR(static_cast<double>(transformer.parameters), 4.50e6, 0.01e6);
  EXPECT_EQ(transformer.bytes, 2 * transformer.parameters);
  EXPECT_EQ(transformer.blocks, "4 double + 8 single");
  for (const ComponentInfo& c : info.components) EXPECT_EQ(c.unsupported, "") << c.name;
}

TEST(Inspect, CountsTheWeightsOfQuantizedCheckpoints) {
  const ComponentInfo plain =
      component(inspect_checkpoint(test::demo_model().string()), "transformer");
  EXPECT_TRUE(plain.quantized_layers.empty());
  test::TempDir folder;
  for (const char* type : test::kQuantizeTypes) {
    quantize_checkpoint(test::demo_model().string(), folder / type,
                        {.config = {.quant_type = type, .precision_plan = {{"to_q", "none"}}}});
    const CheckpointInfo info = inspect_checkpoint((folder / type).string());
    const ComponentInfo& transformer = component(info, "transformer");
    EXPECT_EQ(transformer.parameters, plain.parameters) << type;
    EXPECT_EQ(transformer.quantized_layers, (std::map<std::string, int64_t>{{type, 104 - 12}}));
    EXPECT_LT(transformer.bytes, plain.bytes);
    EXPECT_TRUE(component(info, "text_encoder").quantized_layers.empty());
  }
}

TEST(Inspect, ReadsTheTypesOfOtherProgramsFilesOffTheWeights) {
  const at::Tensor float8 = at::zeros({4, 8}).to(at::kFloat8_e4m3fn), one = at::ones({1});
  const std::map<std::string, at::Tensor> tensors = {
      {"a.weight", float8},
      {"a.scale_weight", one},
      {"a.scale_input", one},
      {"a.bias", at::zeros({4})},
      {"b.weight", at::zeros({4, 8}, at::kChar)},
      {"b.weight.scale", at::ones({4, 1})},
      {"b.comfy_quant", at::zeros({30}, at::kByte)},
      {"shared.weight", float8},
      {"norm.scale", at::ones({5})},
      {"scaled_fp8", at::zeros({2}).to(at::kFloat8_e4m3fn)}};
  test::TempDir folder;
  const fs::path model = folder / "model";
  fs::copy(test::demo_model(), model, fs::copy_options::recursive);
  const fs::path file = model / "text_encoder_2" / "model.safetensors";
  fs::remove(file);
  io::write_safetensors(file, tensors);
  const ComponentInfo info = component(inspect_checkpoint(model.string()), "text_encoder_2");
  EXPECT_EQ(info.parameters, 3 * 32 + 4 + 5);
  EXPECT_EQ(info.quantized_layers,
            (std::map<std::string, int64_t>{{"float8_weight_only", 1}, {"int8_weight_only", 1}}));
}

TEST(Inspect, SaysWhatIsUnsupportedAndWhy) {
  test::TempDir folder;
  const fs::path model = folder / "model";
  fs::copy(test::demo_model(), model, fs::copy_options::recursive);
  std::string index = test::read_bytes(model / "model_index.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    const size_t at = index.find(from);
    ASSERT_NE(at, std::string::npos);
    index.replace(at, from.size(), to);
  };
  replace("\"FluxPipeline\"", "\"QwenImagePipeline\"");
  replace("FlowMatchEulerDiscreteScheduler", "DDIMScheduler");
  folder.write("model/model_index.json", index);
  folder.write("model/transformer/config.json",
               R"({"_class_name": "FluxTransformer2DModel", "new_key": 3})");
  fs::remove(model / "vae" / "diffusion_pytorch_model.safetensors");

  const CheckpointInfo info = inspect_checkpoint(model.string());
  EXPECT_NE(info.unsupported, "");
  EXPECT_THAT(component(info, "scheduler").unsupported, ::testing::HasSubstr("DDIMScheduler"));
  EXPECT_THAT(component(info, "transformer").unsupported, ::testing::HasSubstr("new_key"));
  EXPECT_GT(component(info, "transformer").parameters, 0) << "the size is known all the same";
  EXPECT_THAT(component(info, "vae").unsupported, ::testing::HasSubstr("safetensors"));
  EXPECT_EQ(component(info, "tokenizer").unsupported, "");
}

TEST(Inspect, NeedsAModelIndex) {
  test::TempDir folder;
  EXPECT_THROW(inspect_checkpoint(folder.path().string()), IoError);
  folder.write("model_index.json", "[1]");
  EXPECT_THROW(inspect_checkpoint(folder.path().string()), ConfigError);
}

}  // namespace
}  // namespace cachedit
