// Caching of a user's own blocks: every pattern against a plain loop and against cache-dit.
#include "cachedit/block_adapter.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "cache/block_adapter_toy.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tensor_file.h"

namespace cachedit {
namespace {

using nlohmann::json;
using test::denoise;
using ::testing::IsEmpty;
using ::testing::Not;

EnableCacheOptions options_of(const json& given) {
  DBPruneConfig config;
  config.Fn_compute_blocks = given.at("Fn_compute_blocks");
  config.Bn_compute_blocks = given.at("Bn_compute_blocks");
  config.max_warmup_steps = given.at("max_warmup_steps");
  config.residual_diff_threshold = given.at("residual_diff_threshold");
  config.max_continuous_cached_steps = given.value("max_continuous_cached_steps", -1);
  if (given.contains("enable_separate_cfg")) {
    config.enable_separate_cfg = given.at("enable_separate_cfg").get<bool>();
  }
  EnableCacheOptions options;
  if (given.at("prune").get<bool>()) {
    options.cache_config = config;
  } else {
    options.cache_config = static_cast<const DBCacheConfig&>(config);
  }
  if (!given.at("taylorseer_order").is_null()) {
    options.calibrator_config = {.taylorseer_order = given.at("taylorseer_order").get<int64_t>()};
  }
  return options;
}

EnableCacheOptions few_blocks(CalibratorCacheType type, bool prune) {
  const DBCacheConfig config{.Fn_compute_blocks = 1, .Bn_compute_blocks = 1, .max_warmup_steps = 3};
  EnableCacheOptions options;
  options.calibrator_config = {.calibrator_cache_type = type};
  if (prune) {
    DBPruneConfig prune_config;
    static_cast<DBCacheConfig&>(prune_config) = config;
    options.cache_config = prune_config;
  } else {
    options.cache_config = config;
  }
  return options;
}

test::Forward through(CachedBlocks& cached, int64_t pattern) {
  return [&cached, pattern](const nn::Streams& streams) {
    return test::cached_forward(cached, pattern, streams);
  };
}

void expect_diffs(const CacheBranchStats& branch, const json& want) {
  ASSERT_EQ(branch.residual_diffs.size(), want.size());
  for (const auto& [step, diffs] : branch.residual_diffs) {
    const auto wanted = want.at(std::to_string(step)).get<std::vector<double>>();
    ASSERT_EQ(diffs.size(), wanted.size()) << "step " << step;
    for (size_t i = 0; i < diffs.size(); ++i) EXPECT_NEAR(diffs[i] / wanted[i], 1, 1e-4) << step;
  }
}

std::vector<json> golden_cases() {
  return json::parse(test::read_bytes(test::golden("block_adapter") / "cases.json"));
}

class BlockAdapterGolden : public ::testing::TestWithParam<json> {};

TEST_P(BlockAdapterGolden, CachesTheStepsOfCacheDit) {
  const json& run = GetParam();
  const auto tensors = test::read_tensors(test::golden("block_adapter") / "expected.safetensors");
  const auto pattern = run.at("pattern").get<int64_t>();
  const EnableCacheOptions options = options_of(run.at("options"));
  const bool separate_cfg = run.at("options").contains("enable_separate_cfg");
  CachedBlocks cached(test::toy_adapter(pattern), options);
  const nn::Streams got =
      denoise(through(cached, pattern),
              {.hidden = tensors.at("x"), .encoder = tensors.at("encoder")}, separate_cfg);
  const CacheStats stats = cached.summary().front();
  EXPECT_EQ(json(stats.conditional.cached_steps), run.at("cached_steps"));
  EXPECT_EQ(json(stats.unconditional.cached_steps), run.at("cfg_cached_steps"));
  EXPECT_EQ(json(stats.conditional.pruned_blocks), run.at("pruned_blocks"));
  expect_diffs(stats.conditional, run.at("residual_diffs"));
  expect_diffs(stats.unconditional, run.at("cfg_residual_diffs"));
  EXPECT_THAT(stats.conditional.cached_steps, Not(IsEmpty()));
  const auto name = run.at("name").get<std::string>();
  EXPECT_LT(test::relative_error(got.hidden, tensors.at(name + ".hidden")), 1e-5);
  const auto encoder = tensors.find(name + ".encoder");
  if (encoder != tensors.end()) {
    EXPECT_LT(test::relative_error(got.encoder, encoder->second), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockAdapterGolden, ::testing::ValuesIn(golden_cases()),
                         [](const ::testing::TestParamInfo<json>& test) {
                           return test.param.at("name").get<std::string>();
                         });

class EveryPattern : public ::testing::TestWithParam<int64_t> {
 protected:
  int64_t pattern() const { return GetParam(); }
};

TEST_P(EveryPattern, WithThresholdZeroOrDisabledEqualsAPlainLoop) {
  const nn::Streams start = test::toy_start();
  const nn::Streams want =
      denoise([&](const nn::Streams& s) { return test::plain_forward(pattern(), s); }, start);
  for (const bool in_place : {false, true}) {
    CachedBlocks cached(test::toy_adapter(pattern(), in_place),
                        {.cache_config = DBCacheConfig{.Fn_compute_blocks = 2,
                                                       .Bn_compute_blocks = 1,
                                                       .residual_diff_threshold = 0,
                                                       .max_warmup_steps = 0}});
    for (const bool enabled : {true, false}) {
      if (!enabled) cached.disable();
      const nn::Streams got = denoise(through(cached, pattern()), start);
      EXPECT_TRUE(test::same_values(got.hidden, want.hidden)) << in_place << enabled;
      EXPECT_TRUE(test::same_values(got.encoder, want.encoder)) << in_place << enabled;
    }
  }
}

TEST_P(EveryPattern, InPlaceBlocksGiveWhatTheirTwinsGive) {
  for (const bool prune : {false, true}) {
    for (const auto type : {CalibratorCacheType::kResidual, CalibratorCacheType::kHiddenStates}) {
      const EnableCacheOptions options = few_blocks(type, prune);
      CachedBlocks twin(test::toy_adapter(pattern(), false), options);
      CachedBlocks in_place(test::toy_adapter(pattern(), true), options);
      const nn::Streams want = denoise(through(twin, pattern()), test::toy_start());
      const nn::Streams got = denoise(through(in_place, pattern()), test::toy_start());
      EXPECT_TRUE(test::same_values(got.hidden, want.hidden));
      EXPECT_TRUE(test::same_values(got.encoder, want.encoder));
      const CacheBranchStats stats = in_place.summary().front().conditional;
      EXPECT_THAT(stats.cached_steps, Not(IsEmpty()));
      EXPECT_EQ(stats.cached_steps, twin.summary().front().conditional.cached_steps);
      for (const auto& [step, diffs] : stats.residual_diffs) {
        for (const double diff : diffs) EXPECT_TRUE(std::isfinite(diff)) << step;
      }
    }
  }
}

TEST_P(EveryPattern, WhatForwardReturnedMayBeWrittenInto) {
  for (const auto type : {CalibratorCacheType::kResidual, CalibratorCacheType::kHiddenStates}) {
    EnableCacheOptions options = few_blocks(type, false);
    std::get<DBCacheConfig>(options.cache_config).Bn_compute_blocks = 0;
    CachedBlocks untouched(test::toy_adapter(pattern(), true), options);
    CachedBlocks written(test::toy_adapter(pattern(), true), options);
    const nn::Streams want = denoise(through(untouched, pattern()), test::toy_start());
    const auto spoil = [&](const nn::Streams& streams) {
      nn::Streams result = test::cached_forward(written, pattern(), streams);
      const nn::Streams copy{.hidden = result.hidden.clone(), .encoder = result.encoder.clone()};
      result.hidden.fill_(1e6);
      result.encoder.fill_(1e6);
      return copy;
    };
    const nn::Streams got = denoise(spoil, test::toy_start());
    EXPECT_TRUE(test::same_values(got.hidden, want.hidden));
    EXPECT_TRUE(test::same_values(got.encoder, want.encoder));
  }
}

TEST_P(EveryPattern, WithoutMiddleBlocksEverythingIsComputedAndReturned) {
  CachedBlocks cached(test::toy_adapter(pattern()),
                      {.cache_config = DBCacheConfig{.Fn_compute_blocks = test::kToyBlocks,
                                                     .max_warmup_steps = 2}});
  const nn::Streams start = test::toy_start();
  const nn::Streams want =
      denoise([&](const nn::Streams& s) { return test::plain_forward(pattern(), s); }, start);
  const nn::Streams got = denoise(through(cached, pattern()), start);
  EXPECT_LT(test::relative_error(got.hidden, want.hidden), 1e-6);
  EXPECT_LT(test::relative_error(got.encoder, want.encoder), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(BlockAdapter, EveryPattern, ::testing::Range<int64_t>(0, 6),
                         [](const auto& test) { return "pattern" + std::to_string(test.param); });

}  // namespace
}  // namespace cachedit
