// Options: what is refused, compact names, masks of computed steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "cache/config_check.h"
#include "cachedit/error.h"
#include "golden_options.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct BadValue {
  const char* field;
  std::function<void(cache::CacheOptions&)> set;
};

/// One value out of range for every field that has a range.
std::vector<BadValue> bad_values() {
  std::vector<BadValue> all;
  const auto config = [&](const char* field, std::function<void(DBPruneConfig&)> set) {
    all.push_back({field, [set](cache::CacheOptions& o) { set(o.config); }});
  };
  const auto calibrator = [&](const char* field, std::function<void(CalibratorConfig&)> set) {
    all.push_back({field, [set](cache::CacheOptions& o) { set(o.calibrator.emplace()); }});
  };
  config("Fn_compute_blocks", [](auto& c) { c.Fn_compute_blocks = 0; });
  config("Bn_compute_blocks", [](auto& c) { c.Bn_compute_blocks = -1; });
  for (const double bad : {kNan, -0.1, kInfinity}) {
    config("residual_diff_threshold", [=](auto& c) { c.residual_diff_threshold = bad; });
    config("max_accumulated_residual_diff_threshold",
           [=](auto& c) { c.max_accumulated_residual_diff_threshold = bad; });
    config("l1_hidden_states_diff_threshold",
           [=](auto& c) { c.l1_hidden_states_diff_threshold = bad; });
    config("important_condition_threshold",
           [=](auto& c) { c.important_condition_threshold = bad; });
    config("dynamic_prune_threshold_relax_ratio",
           [=](auto& c) { c.dynamic_prune_threshold_relax_ratio = bad; });
    config("max_dynamic_prune_threshold", [=](auto& c) { c.max_dynamic_prune_threshold = bad; });
  }
  config("max_warmup_steps", [](auto& c) { c.max_warmup_steps = -1; });
  config("warmup_interval", [](auto& c) { c.warmup_interval = 0; });
  config("num_inference_steps", [](auto& c) { c.num_inference_steps = 0; });
  config("steps_computation_mask", [](auto& c) { c.steps_computation_mask = {1, 2}; });
  config("force_refresh_step_hint", [](auto& c) { c.force_refresh_step_hint = 0; });
  config("downsample_factor", [](auto& c) { c.downsample_factor = 0; });
  config("non_prune_block_ids", [](auto& c) { c.non_prune_block_ids = {2, -1}; });
  config("static_skips_Fn_blocks", [](auto& c) { c.static_skips_Fn_blocks = true; });
  config("cfg_compute_first", [](auto& c) {
    c.enable_separate_cfg = true;
    c.cfg_compute_first = true;
  });
  for (const int64_t order : {-1, 5}) {
    calibrator("taylorseer_order", [=](auto& c) { c.taylorseer_order = order; });
  }
  calibrator("dmd_history", [](auto& c) { c.dmd_history = 1; });
  calibrator("dmd_rank", [](auto& c) { c.dmd_rank = -1; });
  calibrator("dmd_ridge", [](auto& c) { c.dmd_ridge = -1; });
  calibrator("dmd_ridge", [](auto& c) { c.dmd_ridge = kNan; });
  calibrator("dmd_svd_precision", [](auto& c) { c.dmd_svd_precision = "exact"; });
  calibrator("linear_coefficients_path",
             [](auto& c) { c.calibrator_type = CalibratorType::kLinear; });
  return all;
}

TEST(CacheConfig, RefusesValuesOutOfRangeNamingTheField) {
  cache::CacheOptions good;
  good.type = CacheType::kDBPrune;
  check(good);
  for (const BadValue& bad : bad_values()) {
    SCOPED_TRACE(bad.field);
    cache::CacheOptions options = good;
    bad.set(options);
    test::expect_error<ConfigError>([&] { check(options); }, HasSubstr(bad.field));
  }
}

TEST(CacheConfig, TakesTheEdgesOfEveryRange) {
  cache::CacheOptions options;
  DBPruneConfig& c = options.config;
  c.Fn_compute_blocks = 1;
  c.residual_diff_threshold = 0;
  c.max_accumulated_residual_diff_threshold = 0;
  c.max_warmup_steps = 0;
  c.max_cached_steps = c.max_continuous_cached_steps = -7;  // any negative number: no limit
  c.steps_computation_mask = {0, 1};
  c.num_inference_steps = 1;
  c.force_refresh_step_hint = 1;
  options.calibrator.emplace().taylorseer_order = 4;
  EXPECT_NO_THROW(check(options));
  options.type = CacheType::kDBPrune;
  EXPECT_NO_THROW(check(options));
}

TEST(CacheConfig, BlocksAndMasksMustFit) {
  cache::CacheOptions options;
  options.config.Fn_compute_blocks = 3;
  options.config.Bn_compute_blocks = 2;
  EXPECT_NO_THROW(check_blocks(options, 5, "blocks"));
  test::expect_error<ConfigError>([&] { check_blocks(options, 4, "single_blocks"); },
                                  ::testing::AllOf(HasSubstr("Fn_compute_blocks"),
                                                   HasSubstr("single_blocks"), HasSubstr("3 + 2")));
  EXPECT_NO_THROW(check_steps(options, 5));
  options.config.steps_computation_mask = {1, 0, 1};
  EXPECT_NO_THROW(check_steps(options, 3));
  test::expect_error<ConfigError>(
      [&] { check_steps(options, 4); },
      ::testing::AllOf(HasSubstr("steps_computation_mask"), HasSubstr("3"), HasSubstr("4")));
}

TEST(CacheNames, EqualCacheDits) {
  const json names = json::parse(test::read_bytes(test::golden("cache_names") / "names.json"));
  for (const json& entry : names) {
    const auto want = entry.at("name").get<std::string>();
    if (entry.contains("calibrator")) {
      EXPECT_EQ(strify(test::golden_calibrator(entry["calibrator"])), want);
      continue;
    }
    const DBPruneConfig config = test::golden_config(entry.at("cache"));
    EXPECT_EQ(entry.at("type") == "dbprune" ? strify(config)
                                            : strify(static_cast<const DBCacheConfig&>(config)),
              want);
  }
}

TEST(CacheNames, TheLinearCalibratorHasOneToo) {
  CalibratorConfig c;
  c.calibrator_type = CalibratorType::kLinear;
  EXPECT_EQ(strify(c), "LIN");
}

std::string bits(const std::vector<int64_t>& mask) {
  std::string text;
  for (const int64_t bit : mask) text += std::to_string(bit);
  return text;
}

const json& masks() {
  static const json all =
      json::parse(test::read_bytes(test::golden("cache_steps_masks") / "masks.json"));
  return all;
}

TEST(StepsMask, NamedMasksEqualCacheDits) {
  for (const char* policy : {"slow", "medium", "fast", "ultra"}) {
    for (const auto& [text, want] : masks().at(policy).items()) {
      const int64_t steps = std::stoll(text);
      SCOPED_TRACE(policy + std::string(" ") + text);
      if (want.get<std::string>().empty()) {
        test::expect_error<InputError>([&] { steps_mask(policy, steps); }, HasSubstr(text));
      } else {
        EXPECT_EQ(bits(steps_mask(policy, steps)), want.get<std::string>());
        EXPECT_EQ(steps_mask(policy, steps).back(), 1);
      }
    }
  }
}

TEST(StepsMask, TheseAreKnown) {
  for (const char* policy : {"slow", "medium", "fast", "ultra"}) {
    EXPECT_EQ(bits(steps_mask(policy, 4)), "1101");
    EXPECT_EQ(bits(steps_mask(policy, 6)), "111001");
  }
  EXPECT_EQ(bits(steps_mask("medium", 8)), "11110101");
  EXPECT_EQ(bits(steps_mask("slow", 9)), "111110111");
  EXPECT_EQ(bits(steps_mask("medium", 9)), "111110101");
  EXPECT_EQ(bits(steps_mask("slow", 28)), "1111111101110011100110010001");
  EXPECT_EQ(bits(steps_mask("medium", 28)), "1111110110001100011000110001");
}

TEST(StepsMask, RefusesUnknownPoliciesListingThem) {
  for (const int64_t steps : {4, 28}) {
    test::expect_error<InputError>(
        [&] { steps_mask("turbo", steps); },
        ::testing::AllOf(HasSubstr("turbo"), HasSubstr("slow, medium, fast or ultra")));
  }
  for (const int64_t steps : {-1, 0, 1, 2, 3, 5, 7}) {
    test::expect_error<InputError>([&] { steps_mask("medium", steps); },
                                   HasSubstr(std::to_string(steps)));
  }
}

TEST(StepsMask, CustomIntervalsEqualCacheDits) {
  for (const json& entry : masks().at("custom")) {
    std::optional<int64_t> steps;
    if (!entry.at("steps").is_null()) steps = entry["steps"].get<int64_t>();
    EXPECT_EQ(bits(steps_mask(entry.at("compute").get<std::vector<int64_t>>(),
                              entry.at("cache").get<std::vector<int64_t>>(), steps)),
              entry.at("mask").get<std::string>());
  }
  const std::vector<int64_t> two = {2}, one = {1}, negative = {-1};
  test::expect_error<InputError>([&] { steps_mask(two, one, 4); }, HasSubstr("3 for 4"));
  test::expect_error<InputError>([&] { steps_mask(negative, one); }, HasSubstr("-1"));
}

}  // namespace
}  // namespace cachedit
