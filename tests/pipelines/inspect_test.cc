#include "cachedit/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cachedit/error.h"
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
