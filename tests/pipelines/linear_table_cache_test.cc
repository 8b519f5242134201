// The file of the linear calibrator's coefficients, and a pipeline that reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "pipelines/linear_table_file.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using pipelines::read_linear_table;
using pipelines::write_linear_table;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LinearTableFile, ReadsBackBitByBit) {
  const test::TempDir folder;
  cache::LinearTable table{.num_inference_steps = 28, .contexts = {}};
  table.contexts["transformer_blocks"]["hidden"][9] = {.from = {8, 7, 6},
                                                       .weights = {1.0 / 3, -0.1, 1e-17}};
  table.contexts["transformer_blocks"]["hidden"][10] = {.from = {8}, .weights = {1.5}};
  table.contexts["transformer_blocks"]["encoder"] = {};
  write_linear_table(folder / "fitted.json", table);
  const cache::LinearTable read = read_linear_table(folder / "fitted.json");
  EXPECT_EQ(read.num_inference_steps, 28);
  ASSERT_EQ(read.contexts.size(), 1U);
  const auto& streams = read.contexts.at("transformer_blocks");
  ASSERT_EQ(streams.count("encoder"), 1U);
  const cache::LinearSteps& steps = streams.at("hidden");
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_THAT(steps.at(9).from, ElementsAre(8, 7, 6));
  EXPECT_THAT(steps.at(9).weights, ElementsAre(1.0 / 3, -0.1, 1e-17));
  EXPECT_THAT(steps.at(10).weights, ElementsAre(1.5));
}

TEST(LinearTableFile, FaultsNameFileAndItem) {
  const test::TempDir folder;
  const auto refused = [&](const std::string& text, const char* why) {
    const auto path = folder.write("bad.json", text);
    test::expect_error<ConfigError>([&] { read_linear_table(path); },
                                    AllOf(HasSubstr("bad.json"), HasSubstr(why)));
  };
  const auto with_step = [](const std::string& step) {
    return R"({"num_inference_steps": 4, "contexts": {"blocks": {"hidden": {)" + step + "}}}}";
  };
  refused("[]", "must be an object");
  refused("{", "JSON");
  refused(R"({"num_inference_steps": 4})", "contexts");
  refused(R"({"contexts": {}})", "num_inference_steps");
  refused(R"({"num_inference_steps": 0, "contexts": {}})", "at least 1");
  refused(R"({"num_inference_steps": 4, "contexts": {}, "steps": 3})", "'steps'");
  refused(R"({"num_inference_steps": 4, "contexts": {"blocks": {"image": {}}}})", "'image'");
  refused(R"({"num_inference_steps": 4, "contexts": {"blocks": 3}})", "blocks");
  refused(with_step(R"("4": {"from": [1], "weights": [1.0]})"), "0..3");
  refused(with_step(R"("x": {"from": [1], "weights": [1.0]})"), "'x'");
  refused(with_step(R"("3": {"from": [1], "weights": [1.0, 2.0]})"), "1 and 2");
  refused(with_step(R"("3": {"from": [], "weights": []})"), "at least one");
  refused(with_step(R"("3": {"from": [3], "weights": [1.0]})"), "newest first");
  refused(with_step(R"("3": {"from": [1, 2], "weights": [1.0, 1.0]})"), "newest first");
  refused(with_step(R"("3": {"from": [1], "weights": ["a"]})"), "weights");
  refused(with_step(R"("3": {"from": [1], "weights": [1.0], "bias": 1})"), "bias");
  test::expect_error<IoError>([&] { read_linear_table(folder / "none.json"); },
                              HasSubstr("none.json"));
}

TEST(LinearTableFile, APipelineForecastsWithIt) {
  const test::TempDir folder;
  cache::LinearTable table{.num_inference_steps = 4, .contexts = {}};
  for (const char* stream : {"hidden", "encoder"}) {
    table.contexts["transformer_blocks"][stream][2] = {.from = {1, 0}, .weights = {1.0, 0.0}};
  }
  write_linear_table(folder / "fitted.json", table);
  const auto pipeline = load_pipeline(test::demo_model().string(), {.dtype = "fp32"});
  GenerateRequest request{
      .prompt = {"red apple"}, .height = 32, .width = 32, .num_inference_steps = 4, .seed = 1};
  EnableCacheOptions reuse = parse_cache_options("F1_SCM1101_static");
  enable_cache(*pipeline, reuse);
  const GenerateResult plain = pipeline->generate(request);
  ASSERT_THAT(plain.cache.at(0).conditional.cached_steps, ElementsAre(2));
  reuse.calibrator_config = CalibratorConfig{.calibrator_type = CalibratorType::kLinear};
  test::expect_error<ConfigError>([&] { enable_cache(*pipeline, reuse); },
                                  HasSubstr("linear_coefficients_path"));
  reuse.calibrator_config->linear_coefficients_path = (folder / "fitted.json").string();
  enable_cache(*pipeline, reuse);
  const GenerateResult fitted = pipeline->generate(request);
  EXPECT_EQ(fitted.cache.at(0).config, "DBCache_F1B0_W8I1M0MC0_R0.08_SCM1101_static_LIN");
  EXPECT_EQ(fitted.images.at(0).pixels, plain.images.at(0).pixels) << "weights 1, 0 reuse";
  request.num_inference_steps = 8;
  test::expect_error<ConfigError>([&] { pipeline->generate(request); },
                                  AllOf(HasSubstr("fitted for 4 steps"), HasSubstr("8")));
}

}  // namespace
}  // namespace cachedit
