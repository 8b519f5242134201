// Caching on several ranks that hold parts of the tokens: one decision for all of them.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/block_adapter.h"
#include "cachedit/error.h"
#include "parallel/sequence.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"
#include "synthetic_blocks.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 12, kTokens = 8, kBlocks = 4;

// The blocks change every token by itself, so that parts of the tokens give parts of the outputs.
at::Tensor input(int64_t step) { return test::synthetic_input(step).hidden; }

struct Outcome {
  std::vector<at::Tensor> outputs;  ///< of all tokens
  CacheStats stats;
};

/// One pass per step on this rank's tokens.
Outcome run_on(comm::Communicator& rank, cache::RunnerOptions options) {
  options.group = &rank;
  cache::CachedBlockRunner runner(options);
  const test::SyntheticList list(kBlocks);
  const parallel::SequenceSplit split(rank, kTokens);
  Outcome outcome;
  for (int64_t step = 0; step < kSteps; ++step) {
    const nn::Streams out = runner.run({list.list()}, {.hidden = split.take(input(step), 1)}, {},
                                       {.step = step, .num_steps = kSteps});
    outcome.outputs.push_back(split.gather(out.hidden, 1));
  }
  outcome.stats = runner.statistics().at(0);
  return outcome;
}

Outcome alone(const cache::RunnerOptions& options) {
  comm::SingleProcess process;
  return run_on(process, options);
}

void expect_same_as_alone(const cache::RunnerOptions& options) {
  const Outcome want = alone(options);
  const auto& steps = want.stats.conditional.cached_steps;
  ASSERT_FALSE(steps.empty());
  ASSERT_LT(static_cast<int64_t>(steps.size()), kSteps - 1);
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    test::run_ranks(ranks, [&](comm::Communicator& rank) {
      const Outcome got = run_on(rank, options);
      const CacheBranchStats &a = got.stats.conditional, &b = want.stats.conditional;
      EXPECT_EQ(a.cached_steps, b.cached_steps);
      EXPECT_EQ(a.pruned_blocks, b.pruned_blocks);
      ASSERT_EQ(a.residual_diffs.size(), b.residual_diffs.size());
      for (size_t i = 0; i < a.residual_diffs.size(); ++i) {
        ASSERT_EQ(a.residual_diffs[i].second.size(), b.residual_diffs[i].second.size());
        for (size_t k = 0; k < a.residual_diffs[i].second.size(); ++k) {
          EXPECT_NEAR(a.residual_diffs[i].second[k], b.residual_diffs[i].second[k], 1e-5);
        }
      }
      for (size_t i = 0; i < got.outputs.size(); ++i) {
        EXPECT_LE(test::relative_error(got.outputs[i], want.outputs[i]), 1e-5);
      }
    });
  }
}

DBCacheConfig small_config() {
  DBCacheConfig config;
  config.Fn_compute_blocks = 1;
  config.Bn_compute_blocks = 0;
  config.max_warmup_steps = 2;
  config.residual_diff_threshold = 0.09;
  config.max_continuous_cached_steps = 3;
  return config;
}

TEST(CacheRanks, DecisionsAndOutputsAreThoseOfOneRank) {
  expect_same_as_alone(test::runner_options(small_config()));
}

TEST(CacheRanks, AHitThatLeavesTheLastBlockOutGivesAllTokens) {
  DBCacheConfig config = small_config();
  config.steps_computation_mask = {1, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1};
  config.steps_computation_policy = StepsComputationPolicy::kStatic;
  expect_same_as_alone(test::runner_options(config));
}

TEST(CacheRanks, CalibratorsWorkOnEveryRanksTokens) {
  cache::RunnerOptions options = test::runner_options(small_config());
  options.cache.calibrator = CalibratorConfig();
  expect_same_as_alone(options);
}

TEST(CacheRanks, ImportantTokensAreCountedOverAllRanks) {
  DBCacheConfig config = small_config();
  config.important_condition_threshold = 0.05;
  config.residual_diff_threshold = 0.12;
  expect_same_as_alone(test::runner_options(config));
}

TEST(CacheRanks, PruningDecidesBlockByBlockTogether) {
  DBPruneConfig config;
  static_cast<DBCacheConfig&>(config) = small_config();
  expect_same_as_alone(test::runner_options(config));
}

// Where one rank alone sees another shape, no rank may leave the others waiting.
TEST(CacheRanks, AnotherLengthOnOneRankIsAMissOnAll) {
  test::run_ranks(2, [](comm::Communicator& rank) {
    cache::RunnerOptions options = test::runner_options(small_config());
    options.cache.config.residual_diff_threshold = 0.9;
    options.group = &rank;
    cache::CachedBlockRunner runner(options);
    const test::SyntheticList list(kBlocks);
    for (int64_t step = 0; step < 6; ++step) {
      const int64_t tokens = step == 4 && rank.rank() == 0 ? 5 : 4;
      runner.run({list.list()}, {.hidden = input(step).narrow(1, 0, tokens)}, {},
                 {.step = step, .num_steps = 6});
    }
    const CacheBranchStats stats = runner.statistics().at(0).conditional;
    // After the change the length changes back: another miss.
    EXPECT_EQ(stats.cached_steps, (std::vector<int64_t>{2, 3}));
  });
}

/// Hands on the second half of the tokens, as a block that splits the sequence would.
class SplittingBlock final : public nn::Block {
 public:
  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext&) const override {
    return {.hidden = streams.hidden.narrow(1, 4, 4)};
  }
};

TEST(CacheRanks, SplittingInsideTheBlocksIsRefused) {
  cache::CachedBlockRunner runner(test::runner_options(small_config()));
  const SplittingBlock splitting;
  const test::SyntheticList rest(2);
  nn::BlockList list = rest.list();
  list.blocks.insert(list.blocks.begin(), &splitting);
  test::expect_error<UnsupportedError>(
      [&] { runner.run({list}, {.hidden = input(0)}, {}, {}); },
      AllOf(HasSubstr("[1, 8, 16]"), HasSubstr("[1, 4, 16]"), HasSubstr("split")));
}

TEST(CacheRanks, AnAdaptersBlocksDecideTogether) {
  std::vector<std::vector<int64_t>> cached(2);
  test::run_ranks(2, [&](comm::Communicator& rank) {
    BlockAdapter adapter;
    adapter.world = World(std::shared_ptr<comm::Communicator>(&rank, [](comm::Communicator*) {}));
    AdaptedBlocks list;
    list.name = "blocks";
    list.forward_pattern = ForwardPattern::kPattern3;
    for (int i = 0; i < kBlocks; ++i) {
      list.blocks.emplace_back([](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{in[0] + 0.2 * in[0].tanh()};
      });
    }
    adapter.lists = {list};
    CachedBlocks blocks(adapter, {.cache_config = small_config()});
    // Rank 1's tokens hardly change; alone it would reuse more often.
    const double speed = rank.rank() == 0 ? 1.0 : 0.01;
    for (int64_t step = 0; step < kSteps; ++step) {
      blocks.forward({.hidden_states = test::synthetic_input(step, 0, speed).hidden,
                      .step = RequestStep{.step = step, .num_steps = kSteps}});
    }
    cached[static_cast<size_t>(rank.rank())] = blocks.summary().at(0).conditional.cached_steps;
  });
  EXPECT_FALSE(cached[0].empty());
  EXPECT_EQ(cached[0], cached[1]);
}

}  // namespace
}  // namespace cachedit
