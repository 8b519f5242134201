// The caching runner on synthetic lists: blocks that overwrite their inputs, guidance branches,
// lists that decide apart, changes of shape.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cache/cached_block_runner.h"
#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"
#include "synthetic_blocks.h"

namespace cachedit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

DBCacheConfig quick(double threshold = 0.24) {
  DBCacheConfig c;
  c.Fn_compute_blocks = 1;
  c.residual_diff_threshold = threshold;
  c.max_warmup_steps = 2;
  return c;
}

DBPruneConfig quick_prune(double threshold = 0.24) {
  DBPruneConfig c;
  static_cast<DBCacheConfig&>(c) = quick(threshold);
  return c;
}

CalibratorConfig taylor(CalibratorCacheType type) {
  CalibratorConfig c;
  c.calibrator_cache_type = type;
  return c;
}

void expect_finite_diffs(const CacheStats& stats) {
  for (const auto& [step, diffs] : stats.conditional.residual_diffs) {
    for (const double diff : diffs) EXPECT_TRUE(std::isfinite(diff)) << "step " << step;
  }
}

/// Options under which a block that overwrites its input could spoil what the cache keeps.
std::vector<std::pair<std::string, cache::RunnerOptions>> writing_cases() {
  std::vector<std::pair<std::string, cache::RunnerOptions>> cases;
  const auto add = [&](const char* name, cache::RunnerOptions options,
                       std::optional<CalibratorConfig> calibrator) {
    options.cache.calibrator = std::move(calibrator);
    cases.emplace_back(name, std::move(options));
  };
  DBCacheConfig back = quick();
  back.Bn_compute_blocks = 1;
  DBCacheConfig states = quick();
  states.l1_hidden_states_diff_threshold = 0.1;
  for (const auto type : {CalibratorCacheType::kResidual, CalibratorCacheType::kHiddenStates}) {
    add("front", test::runner_options(quick()), taylor(type));
    add("back", test::runner_options(back), taylor(type));
    add("prune", test::runner_options(quick_prune()), taylor(type));
  }
  CalibratorConfig foca = taylor(CalibratorCacheType::kHiddenStates);
  foca.calibrator_type = CalibratorType::kFoCa;
  CalibratorConfig reuse = taylor(CalibratorCacheType::kHiddenStates);
  reuse.taylorseer_order = 0;
  add("foca", test::runner_options(back), foca);
  add("as it was", test::runner_options(quick()), reuse);
  add("plain", test::runner_options(quick()), std::nullopt);
  add("plain back", test::runner_options(back), std::nullopt);
  add("hidden states", test::runner_options(states), std::nullopt);
  add("plain prune", test::runner_options(quick_prune()), std::nullopt);
  return cases;
}

TEST(CachedBlockRunner, BlocksThatOverwriteTheirInputsAreCachedAsTheirTwins) {
  for (const auto& [name, options] : writing_cases()) {
    SCOPED_TRACE(name);
    const test::SyntheticList pure(4), writing(4, true);
    const test::SyntheticRun want = test::run_steps(options, pure, 8);
    const test::SyntheticRun got = test::run_steps(options, writing, 8);
    EXPECT_THAT(got.stats[0].conditional.cached_steps, Not(IsEmpty()));
    EXPECT_EQ(got.stats[0].conditional.cached_steps, want.stats[0].conditional.cached_steps);
    EXPECT_EQ(got.stats[0].conditional.residual_diffs, want.stats[0].conditional.residual_diffs);
    expect_finite_diffs(got.stats[0]);
    EXPECT_EQ(writing.calls(), pure.calls());
    EXPECT_TRUE(test::same_outputs(got, want));
  }
}

TEST(CachedBlockRunner, AListThatWritesDoesNotSpoilTheListBeforeIt) {
  cache::RunnerOptions options = test::runner_options(quick());
  options.separate_lists = true;
  options.cache.calibrator = taylor(CalibratorCacheType::kHiddenStates);
  const test::SyntheticList first(3, false, "first"), pure(3, false, "second");
  const test::SyntheticList writing(3, true, "second");
  cache::CachedBlockRunner want(options), got(options);
  for (int64_t step = 0; step < 8; ++step) {
    const nn::StepInfo info{.step = step, .num_steps = 8};
    const auto a = want.run({first.list(), pure.list()}, test::synthetic_input(step), {}, info);
    const auto b = got.run({first.list(), writing.list()}, test::synthetic_input(step), {}, info);
    EXPECT_TRUE(test::same_values(a.hidden, b.hidden)) << "step " << step;
    EXPECT_TRUE(test::same_values(a.encoder, b.encoder)) << "step " << step;
  }
  ASSERT_EQ(got.statistics().size(), 2u);
  EXPECT_THAT(got.statistics()[0].conditional.cached_steps, Not(IsEmpty()));
}

TEST(CachedBlockRunner, ThresholdZeroComputesWhatAnUncachedRunComputes) {
  const test::SyntheticList list(6);
  nn::PlainBlockRunner plain;
  const test::SyntheticRun want = test::run_steps(plain, list, 10);
  for (const auto& options :
       {test::runner_options(quick(0)), test::runner_options(quick_prune(0))}) {
    const test::SyntheticRun got = test::run_steps(options, list, 10);
    EXPECT_TRUE(test::same_outputs(got, want));
    EXPECT_THAT(got.stats[0].conditional.cached_steps, IsEmpty());
  }
}

TEST(CachedBlockRunner, AHitSkipsTheMiddleUpToTheLastBlock) {
  DBCacheConfig config = quick(1.0);
  for (const int64_t back : {0, 1, 3}) {
    SCOPED_TRACE(back);
    config.Bn_compute_blocks = back;
    const test::SyntheticList list(4);
    const test::SyntheticRun run = test::run_steps(test::runner_options(config), list, 5);
    EXPECT_THAT(run.stats[0].conditional.cached_steps, ElementsAre(2, 3, 4));
    for (size_t block = 0; block < 4; ++block) {
      const bool always = block < 1 || static_cast<int64_t>(block) >= 4 - back;
      EXPECT_EQ(list.calls(block), always ? 5 : 2) << "block " << block;
    }
  }
}

/// Two passes a step, whose inputs differ much. Conditional first.
template <class Config>
std::vector<CacheStats> run_guided(const Config& config, uint64_t unconditional_seed) {
  cache::CachedBlockRunner runner(test::runner_options(config));
  const test::SyntheticList list(4);
  for (int64_t step = 0; step < 8; ++step) {
    for (const int64_t branch : {0, 1}) {
      // The unconditional branch moves twice as fast.
      const auto input = branch == 0 ? test::synthetic_input(step, 0)
                                     : test::synthetic_input(step, unconditional_seed, 2.0);
      runner.run({list.list()}, input, {}, {.step = step, .num_steps = 8, .branch = branch});
    }
  }
  return runner.statistics();
}

TEST(CachedBlockRunner, GuidanceBranchesShareNothing) {
  DBCacheConfig config = quick(0.1);
  config.enable_separate_cfg = true;
  const CacheStats one = run_guided(config, 1)[0];
  EXPECT_EQ(one.executed_steps, 8);
  EXPECT_EQ(one.transformer_executed_steps, 16);
  EXPECT_THAT(one.conditional.cached_steps, Not(IsEmpty()));
  EXPECT_NE(one.conditional.cached_steps, one.unconditional.cached_steps);
  const CacheStats other = run_guided(config, 7)[0];
  EXPECT_EQ(other.conditional.cached_steps, one.conditional.cached_steps);
  EXPECT_EQ(other.conditional.residual_diffs, one.conditional.residual_diffs);
  EXPECT_NE(other.unconditional.residual_diffs, one.unconditional.residual_diffs);
}

TEST(CachedBlockRunner, TheUnconditionalBranchMayReuseTheOthersDifference) {
  DBCacheConfig config = quick(0.1);
  config.enable_separate_cfg = true;
  config.cfg_diff_compute_separate = false;
  const CacheStats stats = run_guided(config, 1)[0];
  EXPECT_EQ(stats.unconditional.cached_steps, stats.conditional.cached_steps);
  EXPECT_EQ(stats.unconditional.residual_diffs, stats.conditional.residual_diffs);
}

TEST(CachedBlockRunner, PrunedBlocksReuseTheDifferenceOfTheSameBlock) {
  DBPruneConfig config = quick_prune(0.1);
  config.enable_separate_cfg = true;
  config.cfg_diff_compute_separate = false;
  const CacheStats stats = run_guided(config, 1)[0];
  EXPECT_THAT(stats.conditional.cached_steps, Not(IsEmpty()));
  EXPECT_EQ(stats.unconditional.residual_diffs, stats.conditional.residual_diffs);
  EXPECT_EQ(stats.unconditional.pruned_blocks, stats.conditional.pruned_blocks);
}

TEST(CachedBlockRunner, WithoutSeparateGuidanceEveryPassIsAStep) {
  const CacheStats fused =
      test::run_steps(test::runner_options(quick()), test::SyntheticList(4), 8).stats[0];
  EXPECT_EQ(fused.executed_steps, 8);
  EXPECT_EQ(fused.transformer_executed_steps, 8);
  EXPECT_EQ(run_guided(quick(), 1)[0].executed_steps, 16);
}

TEST(CachedBlockRunner, UnconditionalFirstOpensTheStep) {
  DBCacheConfig config = quick(0.1);
  config.enable_separate_cfg = true;
  const CacheStats usual = run_guided(config, 1)[0];
  config.cfg_compute_first = true;
  config.cfg_diff_compute_separate = false;
  // The same passes under the other names; the second one has the first one's differences only
  // where it comes later, so both still measure their own.
  const CacheStats first = run_guided(config, 1)[0];
  EXPECT_EQ(first.executed_steps, 8);
  EXPECT_EQ(first.unconditional.residual_diffs, usual.conditional.residual_diffs);
  EXPECT_EQ(first.conditional.residual_diffs, usual.unconditional.residual_diffs);
}

TEST(CachedBlockRunner, ADifferenceThatIsNotANumberNeverHitsAndIsKept) {
  cache::CachedBlockRunner runner(test::runner_options(quick(0.9)));
  const test::SyntheticList list(3);
  for (int64_t step = 0; step < 5; ++step) {  // tanh(0) = 0: residuals of zero, 0 / 0
    runner.run({list.list()}, {.hidden = at::zeros({1, 4, 4}), .encoder = {}}, {},
               {.step = step, .num_steps = 5});
  }
  const CacheBranchStats branch = runner.statistics()[0].conditional;
  EXPECT_THAT(branch.cached_steps, IsEmpty());
  ASSERT_EQ(branch.residual_diffs.size(), 3u);  // steps 2, 3 and 4
  for (const auto& [step, diffs] : branch.residual_diffs) EXPECT_TRUE(std::isnan(diffs.at(0)));
}

TEST(CachedBlockRunner, AnotherShapeIsComputedNotReused) {
  // The hidden stream's batch, its length, and the encoder's length alone.
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> shapes = {
      {{2, 8, 16}, {2, 3, 16}}, {{1, 10, 16}, {1, 3, 16}}, {{1, 8, 16}, {1, 5, 16}}};
  for (const auto policy : {StepsComputationPolicy::kDynamic, StepsComputationPolicy::kStatic}) {
    for (const auto& [hidden, encoder] : shapes) {
      DBCacheConfig config = quick(1.0);
      config.steps_computation_mask = {1, 0, 0, 0, 0};
      config.steps_computation_policy = policy;
      cache::RunnerOptions options = test::runner_options(config);
      options.cache.calibrator = taylor(CalibratorCacheType::kResidual);
      cache::CachedBlockRunner runner(options);
      const test::SyntheticList list(4);
      const nn::StepInfo info{.step = 0, .num_steps = 5};
      runner.run({list.list()}, test::synthetic_input(0), {}, info);
      runner.run({list.list()}, test::synthetic_input(1), {}, info);
      const nn::Streams other{.hidden = at::full(hidden, 0.5), .encoder = at::full(encoder, 0.25)};
      nn::PlainBlockRunner plain;
      const nn::Streams want = plain.run({list.list()}, other, {}, info);
      const nn::Streams got = runner.run({list.list()}, other, {}, info);
      EXPECT_TRUE(test::same_values(got.hidden, want.hidden));
      EXPECT_TRUE(test::same_values(got.encoder, want.encoder));
      runner.run({list.list()}, other, {}, info);  // now it fits
      EXPECT_THAT(runner.statistics()[0].conditional.cached_steps, ElementsAre(1, 3));
    }
  }
}

TEST(CachedBlockRunner, AMaskThatBeginsWithZeroComputesTheFirstStep) {
  DBCacheConfig config = quick(0.3);
  config.steps_computation_mask = {0, 0, 1, 0};
  config.steps_computation_policy = StepsComputationPolicy::kStatic;
  const auto run = test::run_steps(test::runner_options(config), test::SyntheticList(4), 4);
  EXPECT_THAT(run.stats[0].conditional.cached_steps, ElementsAre(1, 3));
}

TEST(CachedBlockRunner, AStaticMaskMaySkipTheFirstBlocksToo) {
  DBCacheConfig config = quick();
  config.Fn_compute_blocks = 2;
  config.steps_computation_mask = {1, 1, 0, 0, 1, 0};
  config.steps_computation_policy = StepsComputationPolicy::kStatic;
  config.static_skips_Fn_blocks = true;
  for (const int64_t back : {0, 1}) {
    for (const bool writes : {false, true}) {
      config.Bn_compute_blocks = back;
      const test::SyntheticList list(4, writes);
      const auto run = test::run_steps(test::runner_options(config), list, 6);
      EXPECT_THAT(run.stats[0].conditional.cached_steps, ElementsAre(2, 3, 5));
      EXPECT_THAT(run.stats[0].conditional.residual_diffs, IsEmpty());
      EXPECT_EQ(list.calls(), 3 * 4 + 3 * back);
      if (back > 0) continue;
      // What the last computed step added to its input is added to this one's.
      for (const auto& [step, computed] : {std::pair<size_t, size_t>{3, 1}, {5, 4}}) {
        const auto in = [](size_t s) { return test::synthetic_input(static_cast<int64_t>(s)); };
        const at::Tensor residual = run.outputs[computed].hidden - in(computed).hidden;
        EXPECT_TRUE(test::same_values(run.outputs[step].hidden, residual + in(step).hidden));
      }
    }
  }
}

TEST(CachedBlockRunner, BlocksMaySkipTheEncoder) {
  cache::CachedBlockRunner runner(test::runner_options(quick(1.0)));
  const test::SyntheticList list(3);
  for (int64_t step = 0; step < 4; ++step) {
    const nn::Streams out =
        runner.run({list.list()}, {.hidden = test::synthetic_input(step).hidden, .encoder = {}}, {},
                   {.step = step, .num_steps = 4});
    EXPECT_FALSE(out.encoder.defined());
  }
  EXPECT_THAT(runner.statistics()[0].conditional.cached_steps, ElementsAre(2, 3));
}

TEST(CachedBlockRunner, ListsDecideTogetherOrApart) {
  const test::SyntheticList first(3, false, "first"), second(5, false, "second");
  cache::RunnerOptions options = test::runner_options(quick());
  for (const bool apart : {false, true}) {
    options.separate_lists = apart;
    cache::CachedBlockRunner runner(options);
    for (int64_t step = 0; step < 6; ++step) {
      runner.run({first.list(), second.list()}, test::synthetic_input(step), {},
                 {.step = step, .num_steps = 6});
    }
    const auto stats = runner.statistics();
    ASSERT_EQ(stats.size(), apart ? 2u : 1u);
    EXPECT_EQ(stats[0].name, "first");
    if (apart) {
      EXPECT_EQ(stats[1].name, "second");
    }
  }
}

TEST(CachedBlockRunner, ModifiersChangeOneListAndInheritWhatTheyLeaveOut) {
  cache::CacheOptions base = test::runner_options(quick()).cache;
  base.config.enable_separate_cfg = true;
  base.config.steps_computation_mask = {1, 0};
  base.config.max_accumulated_residual_diff_threshold = 2.0;
  base.config.downsample_factor = 3;
  base.calibrator = taylor(CalibratorCacheType::kResidual);
  DBCacheConfig changes;
  changes.Fn_compute_blocks = 2;
  changes.force_refresh_step_hint = 5;
  const cache::CacheOptions changed = modified(base, {.cache_config = changes});
  EXPECT_EQ(changed.config.Fn_compute_blocks, 2);
  EXPECT_EQ(changed.config.max_warmup_steps, 8);
  EXPECT_EQ(changed.config.force_refresh_step_hint, 5);
  EXPECT_EQ(changed.config.enable_separate_cfg, true);
  EXPECT_EQ(changed.config.steps_computation_mask, base.config.steps_computation_mask);
  EXPECT_EQ(changed.config.max_accumulated_residual_diff_threshold, 2.0);
  EXPECT_EQ(changed.config.downsample_factor, 3);
  ASSERT_TRUE(changed.calibrator.has_value());
  CalibratorConfig foca;
  foca.calibrator_type = CalibratorType::kFoCa;
  EXPECT_EQ(modified(base, {.calibrator_config = foca}).calibrator->calibrator_type,
            CalibratorType::kFoCa);
}

TEST(CachedBlockRunner, RefusesOptionsThatDoNotFitTheRun) {
  const test::SyntheticList list(4);
  DBCacheConfig many = quick();
  many.Bn_compute_blocks = 4;
  test::expect_error<ConfigError>(
      [&] { test::run_steps(test::runner_options(many), list, 2); },
      ::testing::AllOf(HasSubstr("Fn_compute_blocks + Bn_compute_blocks"), HasSubstr("1 + 4")));
  DBCacheConfig masked = quick();
  masked.steps_computation_mask = {1, 0, 1};
  test::expect_error<ConfigError>([&] { test::run_steps(test::runner_options(masked), list, 2); },
                                  HasSubstr("steps_computation_mask"));
}

}  // namespace
}  // namespace cachedit
