// Whole FLUX runs with caching against cache-dit, step by step: tests/goldens/make_cache_runs.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cachedit/cachedit.h"
#include "golden_options.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tensor_file.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

using nlohmann::json;

const json& runs() {
  static const json all = json::parse(test::read_bytes(test::golden("cache_runs") / "runs.json"));
  return all;
}

const test::Tensors& expected() {
  static const test::Tensors all =
      test::read_tensors(test::golden("cache_runs") / "expected.safetensors");
  return all;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, run] : runs().items()) all.push_back(name);
  return all;
}

/// Loaded once for all runs of this process.
Pipeline& pipeline(const std::string& model) {
  static const test::TempDir folder;
  static std::map<std::string, std::unique_ptr<Pipeline>> loaded;
  auto& entry = loaded[model];
  if (!entry) {
    std::filesystem::path path = test::demo_model();
    if (model != "flux_demo") {
      path = folder.path() / model;
      test::make_tiny_checkpoint(model, path);
    }
    entry = load_pipeline(path.string(), {.dtype = "fp32", .device = "cpu"});
  }
  return *entry;
}

void expect_branch(const CacheBranchStats& got, const json& want, const std::string& prefix) {
  SCOPED_TRACE(prefix.empty() ? "conditional" : "unconditional");
  const auto list = [&](const char* key) {
    return want.value(prefix + key, std::vector<int64_t>());
  };
  EXPECT_EQ(got.cached_steps, list("cached_steps"));
  EXPECT_EQ(got.pruned_blocks, list("pruned_blocks"));
  const json diffs = want.value(prefix + "residual_diffs", json::array());
  ASSERT_EQ(got.residual_diffs.size(), diffs.size());
  for (size_t i = 0; i < diffs.size(); ++i) {
    const auto& [step, values] = got.residual_diffs[i];
    EXPECT_EQ(step, diffs[i][0].get<int64_t>());
    ASSERT_EQ(values.size() + 1, diffs[i].size()) << "step " << step;
    for (size_t k = 0; k < values.size(); ++k) {
      const double value = diffs[i][k + 1].get<double>();
      EXPECT_NEAR(values[k], value, 1e-3 * std::abs(value)) << "step " << step << ", " << k;
    }
  }
}

class CacheGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(CacheGolden, DecidesAndPredictsAsCacheDit) {
  const json& run = runs().at(GetParam());
  Pipeline& pipe = pipeline(run.at("model"));
  enable_cache(pipe, test::golden_cache_options(run));
  const GenerateResult result = pipe.generate(test::golden_request(run.at("request")));
  const json& contexts = run.at("contexts");
  ASSERT_EQ(result.cache.size(), contexts.size());
  for (size_t i = 0; i < contexts.size(); ++i) {
    const CacheStats& got = result.cache[i];
    SCOPED_TRACE(got.name);
    expect_branch(got.conditional, contexts[i], "");
    expect_branch(got.unconditional, contexts[i], "cfg_");
    EXPECT_EQ(got.conditional.accumulated_cached_steps,
              contexts[i].value("accumulated_cached_steps", 0));
    EXPECT_EQ(got.executed_steps, contexts[i].value("executed_steps", 0));
  }
  EXPECT_LE(test::relative_error(result.latents, expected().at(GetParam())), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Runs, CacheGolden, ::testing::ValuesIn(names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace cachedit
