// Random configurations on blocks of one number: whatever the differences, the limits hold and the
// counts add up. What was skipped is read off the blocks, not off the statistics.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "cache/cached_block_runner.h"

namespace cachedit {
namespace {

/// x -> 1.25 x, counting.
class ScalarBlock final : public nn::Block {
 public:
  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext&) const override {
    ++calls;
    return {.hidden = streams.hidden * 1.25, .encoder = {}};
  }
  mutable int64_t calls = 0;
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t integer(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  bool chance(double p) { return real(0, 1) < p; }

 private:
  std::mt19937_64 engine_;
};

constexpr int64_t kMaxBlocks = 5;

struct Trial {
  int64_t blocks = 0;
  int64_t steps = 0;
  cache::RunnerOptions options;

  const DBPruneConfig& config() const { return options.cache.config; }
  bool prunes() const { return options.cache.type == CacheType::kDBPrune; }
  bool guided() const { return config().enable_separate_cfg.value_or(false); }
  /// Blocks that a cached step computes.
  int64_t always_computed() const {
    return config().Bn_compute_blocks +
           (config().static_skips_Fn_blocks ? 0 : config().Fn_compute_blocks);
  }
  bool is_static() const {
    return !config().steps_computation_mask.empty() &&
           config().steps_computation_policy == StepsComputationPolicy::kStatic;
  }
};

std::optional<CalibratorConfig> random_calibrator(Dice& dice) {
  if (dice.chance(0.6)) return std::nullopt;
  CalibratorConfig c;
  c.calibrator_type = dice.chance(0.5) ? CalibratorType::kTaylorSeer : CalibratorType::kFoCa;
  c.taylorseer_order = dice.integer(0, 4);
  c.enable_calibrator = dice.chance(0.8);
  if (dice.chance(0.5)) c.calibrator_cache_type = CalibratorCacheType::kHiddenStates;
  return c;
}

Trial random_trial(Dice& dice) {
  Trial t;
  t.blocks = dice.integer(1, kMaxBlocks);
  t.steps = dice.integer(1, 12);
  DBPruneConfig& c = t.options.cache.config;
  if (dice.chance(0.4)) t.options.cache.type = CacheType::kDBPrune;
  c.Fn_compute_blocks = dice.integer(1, t.blocks);
  c.Bn_compute_blocks = dice.integer(0, t.blocks - c.Fn_compute_blocks);
  c.residual_diff_threshold = dice.chance(0.15) ? 1.0 : dice.real(0, 0.6);
  if (dice.chance(0.2)) c.max_accumulated_residual_diff_threshold = dice.real(0, 1);
  c.max_warmup_steps = dice.integer(0, 5);
  c.warmup_interval = dice.integer(1, 3);
  c.max_cached_steps = dice.integer(-1, 6);
  c.max_continuous_cached_steps = dice.integer(-1, 4);
  c.enable_separate_cfg = dice.chance(0.3);
  if (dice.chance(0.5)) {
    c.cfg_diff_compute_separate = false;
    c.cfg_compute_first = dice.chance(0.5);
  }
  if (dice.chance(0.3)) {
    for (int64_t i = 0; i < t.steps; ++i) c.steps_computation_mask.push_back(dice.integer(0, 1));
    if (dice.chance(0.5)) c.steps_computation_policy = StepsComputationPolicy::kStatic;
  }
  c.static_skips_Fn_blocks = t.is_static() && !t.prunes() && dice.chance(0.3);
  if (dice.chance(0.2)) c.force_refresh_step_hint = dice.integer(1, 10);
  if (dice.chance(0.5)) c.force_refresh_step_policy = ForceRefreshStepPolicy::kRepeat;
  if (dice.chance(0.1)) c.l1_hidden_states_diff_threshold = dice.real(0, 0.4);
  c.enable_dynamic_prune_threshold = dice.chance(0.3);
  if (dice.chance(0.3)) c.non_prune_block_ids = {dice.integer(0, kMaxBlocks)};
  t.options.cache.calibrator = random_calibrator(dice);
  return t;
}

/// One forward pass, as the blocks saw it, numbered from the last forced refresh.
struct Pass {
  int64_t step = 0;
  bool unconditional = false;
  int64_t skipped = 0;
};

/// The passes since the last refresh, and how many were cached before it.
struct History {
  std::vector<Pass> passes;
  int64_t cached_before = 0;
  int64_t cfg_cached_before = 0;
};

History run(const Trial& t, cache::CachedBlockRunner& runner, Dice& dice) {
  ScalarBlock blocks[kMaxBlocks];
  nn::BlockList list{.name = "blocks", .blocks = {}};
  for (int64_t i = 0; i < t.blocks; ++i) list.blocks.push_back(&blocks[i]);
  const bool flat = dice.chance(0.05);  // zeros: every difference is 0 / 0
  double x = 1;
  History history;
  bool refreshed = false;
  const DBPruneConfig& c = t.config();
  for (int64_t pass = 0; pass < t.steps * (t.guided() ? 2 : 1); ++pass) {
    const auto in_segment = static_cast<int64_t>(history.passes.size());
    const bool repeat = c.force_refresh_step_policy == ForceRefreshStepPolicy::kRepeat;
    if (c.force_refresh_step_hint == in_segment && (repeat || !refreshed)) {
      for (const Pass& p : history.passes) {
        (p.unconditional ? history.cfg_cached_before : history.cached_before) += p.skipped > 0;
      }
      history.passes.clear();
      refreshed = true;
    }
    int64_t before = 0, after = 0;
    for (const ScalarBlock& block : blocks) before += block.calls;
    x *= 1 + dice.real(-0.3, 0.3);
    const at::Tensor in = at::full({1, 1, 1}, flat ? 0.0 : x, at::kFloat);
    runner.run({list}, {.hidden = in, .encoder = {}}, {}, {.step = 0, .num_steps = t.steps});
    for (const ScalarBlock& block : blocks) after += block.calls;
    const auto number = static_cast<int64_t>(history.passes.size());
    history.passes.push_back(
        {.step = t.guided() ? number / 2 : number,
         .unconditional = t.guided() && (number % 2 != 0) != c.cfg_compute_first,
         .skipped = t.blocks - (after - before)});
  }
  return history;
}

bool must_compute(const Trial& t, int64_t step) {
  const DBPruneConfig& c = t.config();
  int64_t warmup = c.max_warmup_steps;
  const auto& mask = c.steps_computation_mask;
  if (!mask.empty()) {
    warmup = std::min<int64_t>(warmup, std::find(mask.begin(), mask.end(), 0) - mask.begin());
    if (mask[static_cast<size_t>(step)] == 1) return true;
  }
  return step == 0 || (step < warmup && step % c.warmup_interval == 0);
}

/// Whether a hit shows in the number of skipped blocks.
bool can_skip(const Trial& t) { return t.always_computed() < t.blocks; }

void check_limits(const Trial& t, const std::vector<int64_t>& cached) {
  const DBPruneConfig& c = t.config();
  for (const int64_t step : cached) EXPECT_FALSE(must_compute(t, step)) << "step " << step;
  if (t.is_static()) return;  // such steps are cached whatever the limits say
  if (c.max_cached_steps >= 0) {
    EXPECT_LE(static_cast<int64_t>(cached.size()), c.max_cached_steps);
  }
  if (c.max_continuous_cached_steps < 0) return;
  int64_t row = 0;
  for (size_t i = 0; i < cached.size(); ++i) {
    row = i > 0 && cached[i] == cached[i - 1] + 1 ? row + 1 : 1;
    EXPECT_LE(row, c.max_continuous_cached_steps) << "step " << cached[i];
  }
}

void check_diffs(const Trial& t, const CacheBranchStats& stats) {
  int64_t last = -1;
  double sum = 0;
  for (const auto& [step, diffs] : stats.residual_diffs) {
    EXPECT_GT(step, last) << "one entry a step, in order";
    last = step;
    ASSERT_FALSE(diffs.empty());
    if (t.prunes()) continue;
    EXPECT_EQ(diffs.size(), 1u);
    const bool hit = std::find(stats.cached_steps.begin(), stats.cached_steps.end(), step) !=
                     stats.cached_steps.end();
    const double limit =
        t.config().l1_hidden_states_diff_threshold.value_or(t.config().residual_diff_threshold);
    EXPECT_EQ(hit, diffs[0] < limit) << "step " << step << ": " << diffs[0];
    const double most = t.config().max_accumulated_residual_diff_threshold.value_or(0);
    if (hit && most > 0) {
      EXPECT_LT(sum, most) << "step " << step;
    }
    if (diffs[0] > 0) sum += diffs[0];
  }
}

void check_branch(const Trial& t, const History& history, bool unconditional,
                  const CacheBranchStats& stats) {
  std::vector<int64_t> cached, skipped;
  for (const Pass& pass : history.passes) {
    if (pass.unconditional != unconditional) continue;
    if (pass.skipped > 0) cached.push_back(pass.step);
    skipped.push_back(pass.skipped);
  }
  check_limits(t, stats.cached_steps);
  check_diffs(t, stats);
  const int64_t before = unconditional ? history.cfg_cached_before : history.cached_before;
  if (t.prunes()) {
    EXPECT_EQ(stats.pruned_blocks, skipped);
    EXPECT_EQ(stats.actual_blocks, std::vector<int64_t>(skipped.size(), t.blocks));
  } else {
    const int64_t middle = t.blocks - t.always_computed();
    for (const int64_t s : skipped) EXPECT_TRUE(s == 0 || s == middle) << s;
  }
  if (!can_skip(t)) return;
  EXPECT_EQ(stats.cached_steps, cached);
  EXPECT_EQ(stats.accumulated_cached_steps, before + static_cast<int64_t>(cached.size()));
}

TEST(StateMachine, KeepsEveryLimitInRandomConfigurations) {
  constexpr int kTrials = 10000;
  int64_t cached = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(trial);
    Dice dice(static_cast<uint64_t>(trial));
    const Trial t = random_trial(dice);
    cache::CachedBlockRunner runner(t.options);
    const History history = run(t, runner, dice);
    const CacheStats stats = runner.statistics().at(0);
    check_branch(t, history, false, stats.conditional);
    check_branch(t, history, true, stats.unconditional);
    EXPECT_EQ(stats.transformer_executed_steps, t.steps * (t.guided() ? 2 : 1));
    if (!t.config().force_refresh_step_hint) {
      EXPECT_EQ(stats.executed_steps, t.steps);
    }
    cached += stats.conditional.accumulated_cached_steps;
    if (HasFailure()) break;  // one trial says enough
  }
  EXPECT_GT(cached, kTrials) << "the trials cache too little to prove anything";
}

}  // namespace
}  // namespace cachedit
