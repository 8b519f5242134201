// Contexts of a user's own blocks over several requests: refresh, shapes, lists, errors.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "cache/block_adapter_toy.h"
#include "cachedit/block_adapter.h"
#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit {
namespace {

using test::denoise;
using test::expect_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kPattern = 0;
using Steps = std::vector<int64_t>;

DBCacheConfig config() {
  return {.Fn_compute_blocks = 1, .max_warmup_steps = 3, .max_continuous_cached_steps = 2};
}

CachedBlocks toy(const DBCacheConfig& cache_config) {
  return enable_cache(test::toy_adapter(kPattern), {.cache_config = cache_config});
}

/// A request of `steps` steps that says where it stands if `tells`.
at::Tensor request(CachedBlocks& cached, const nn::Streams& start, int64_t steps, bool tells) {
  int64_t t = 0;
  const auto forward = [&](const nn::Streams& s) {
    BlockInputs inputs{.hidden_states = s.hidden, .encoder_hidden_states = s.encoder};
    if (tells) inputs.step = RequestStep{.step = t++, .num_steps = steps};
    const std::vector<at::Tensor> out = cached.forward(inputs);
    return nn::Streams{.hidden = out.at(0), .encoder = out.at(1)};
  };
  return denoise(forward, start, false, steps).hidden;
}

Steps cached_steps(const CachedBlocks& cached, size_t list = 0) {
  return cached.summary().at(list).conditional.cached_steps;
}

struct Outcome {
  at::Tensor hidden;
  Steps steps;
};

Outcome fresh(const nn::Streams& start, int64_t steps) {
  CachedBlocks cached = toy(config());
  const at::Tensor hidden = request(cached, start, steps, false);
  return {hidden, cached_steps(cached)};
}

TEST(BlockAdapterRequests, NumInferenceStepsEndsARequestExactly) {
  DBCacheConfig with_steps = config();
  with_steps.num_inference_steps = test::kToySteps;
  CachedBlocks cached = toy(with_steps);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const nn::Streams start = test::toy_start(2, 6, seed);
    const Outcome want = fresh(start, test::kToySteps);
    EXPECT_TRUE(test::same_values(request(cached, start, test::kToySteps, false), want.hidden));
    EXPECT_EQ(cached_steps(cached), want.steps);
    EXPECT_THAT(want.steps, Not(IsEmpty()));
    EXPECT_EQ(cached.summary().front().executed_steps, test::kToySteps);
  }
}

TEST(BlockAdapterRequests, StepInfoSeparatesRequestsOfAnyLengthAndShape) {
  for (const bool configured : {false, true}) {
    DBCacheConfig options = config();
    if (configured) options.num_inference_steps = 12;
    CachedBlocks cached = toy(options);
    uint64_t seed = 1;
    for (const int64_t steps : {1, 1, 12, 14, 5, 14}) {
      const nn::Streams start = test::toy_start(seed % 2 == 0 ? 1 : 2, 4 + steps % 3, seed);
      ++seed;
      const Outcome want = fresh(start, steps);
      EXPECT_TRUE(test::same_values(request(cached, start, steps, true), want.hidden)) << steps;
      EXPECT_EQ(cached_steps(cached), want.steps) << steps;
      EXPECT_EQ(cached.summary().front().executed_steps, steps);
    }
  }
}

TEST(BlockAdapterRequests, StepInfoCountsTwoPassesAStepWithSeparateCfg) {
  BlockAdapter adapter = test::toy_adapter(kPattern);
  adapter.has_separate_cfg = true;
  CachedBlocks cached(adapter, {.cache_config = config()});
  const nn::Streams start = test::toy_start();
  for (int64_t request_number = 0; request_number < 2; ++request_number) {
    int64_t pass = 0;
    const auto forward = [&](const nn::Streams& s) {
      const std::vector<at::Tensor> out =
          cached.forward({.hidden_states = s.hidden,
                          .encoder_hidden_states = s.encoder,
                          .step = RequestStep{.step = pass++ / 2, .num_steps = test::kToySteps}});
      return nn::Streams{.hidden = out.at(0), .encoder = out.at(1)};
    };
    denoise(forward, start, true);
    const CacheStats stats = cached.summary().front();
    EXPECT_EQ(stats.executed_steps, test::kToySteps);
    EXPECT_EQ(stats.transformer_executed_steps, 2 * test::kToySteps);
    EXPECT_THAT(stats.conditional.cached_steps, Not(IsEmpty()));
    EXPECT_THAT(stats.unconditional.cached_steps, Not(IsEmpty()));
  }
}

TEST(BlockAdapterRequests, RefreshForgetsAndTakesNewOptions) {
  CachedBlocks cached = toy(config());
  const nn::Streams start = test::toy_start();
  const Outcome want = fresh(start, test::kToySteps);
  request(cached, test::toy_start(2, 6, 9), 7, false);
  cached.refresh_context();
  EXPECT_THAT(cached_steps(cached), IsEmpty());
  EXPECT_TRUE(test::same_values(request(cached, start, test::kToySteps, false), want.hidden));

  DBCacheConfig never = config();
  never.residual_diff_threshold = 0;
  cached.refresh_context({.cache_config = never});
  request(cached, start, test::kToySteps, false);
  EXPECT_THAT(cached_steps(cached), IsEmpty());
  EXPECT_THAT(cached.summary().front().config, HasSubstr("_R0.0_"));

  never.Fn_compute_blocks = 6;
  expect_error<ConfigError>([&] { cached.refresh_context({.cache_config = never}); },
                            HasSubstr("Fn_compute_blocks"));
  cached.refresh_context("blocks", {.cache_config = config()});
  EXPECT_TRUE(test::same_values(request(cached, start, test::kToySteps, false), want.hidden));
  EXPECT_EQ(cached_steps(cached), want.steps);
}

TEST(BlockAdapterRequests, DisabledKeepsNothingAndEnabledStartsAnew) {
  CachedBlocks cached = toy(config());
  const nn::Streams start = test::toy_start();
  const Outcome want = fresh(start, test::kToySteps);
  request(cached, start, 8, false);
  cached.disable();
  EXPECT_FALSE(cached.enabled());
  request(cached, start, 3, false);
  EXPECT_EQ(cached.summary().front().executed_steps, 0);
  cached.enable();
  EXPECT_TRUE(cached.enabled());
  EXPECT_TRUE(test::same_values(request(cached, start, test::kToySteps, false), want.hidden));
  EXPECT_EQ(cached_steps(cached), want.steps);
}

TEST(BlockAdapterRequests, ANewShapeWithinARequestIsComputed) {
  CachedBlocks cached = toy({.Fn_compute_blocks = 1, .max_warmup_steps = 1});
  for (const int64_t tokens : {6, 6, 9, 9, 6}) {
    const nn::Streams s = test::toy_start(2, tokens);
    const nn::Streams got = test::cached_forward(cached, kPattern, s);
    EXPECT_LT(test::relative_error(got.hidden, test::plain_forward(kPattern, s).hidden), 1e-6);
  }
  EXPECT_THAT(cached_steps(cached), ElementsAre(1, 3));
}

TEST(BlockAdapterRequests, ObjectsAlternateWithoutTouchingEachOther) {
  CachedBlocks first = toy(config());
  CachedBlocks second = toy(config());
  const nn::Streams start_1 = test::toy_start(2, 6, 1);
  const nn::Streams start_2 = test::toy_start(1, 5, 2);
  at::Tensor x_1 = start_1.hidden;
  at::Tensor x_2 = start_2.hidden;
  for (int64_t t = 0; t < test::kToySteps; ++t) {
    x_1 = test::next_state(x_1,
                           test::cached_forward(first, kPattern, {x_1, start_1.encoder}).hidden, t);
    x_2 = test::next_state(
        x_2, test::cached_forward(second, kPattern, {x_2, start_2.encoder}).hidden, t);
  }
  EXPECT_TRUE(test::same_values(x_1, fresh(start_1, test::kToySteps).hidden));
  EXPECT_TRUE(test::same_values(x_2, fresh(start_2, test::kToySteps).hidden));
}

TEST(BlockAdapterRequests, EveryListHasContextAndModifierOfItsOwn) {
  BlockAdapter adapter;
  adapter.lists = {test::toy_list(0), test::toy_list(3)};
  adapter.lists[0].name = "double";
  adapter.lists[1].name = "single";
  DBCacheConfig never = config();
  never.residual_diff_threshold = 0;
  CachedBlocks cached(adapter, {.cache_config = config(), .params_modifiers = {{}, {never}}});
  // The second list runs first: the order of the adapter counts.
  const auto forward = [&](const nn::Streams& s) {
    const at::Tensor single = cached.forward({.hidden_states = s.hidden}, "single").at(0);
    const auto out =
        cached.forward({.hidden_states = single, .encoder_hidden_states = s.encoder}, 0);
    return nn::Streams{.hidden = out.at(0), .encoder = out.at(1)};
  };
  denoise(forward, test::toy_start());
  const std::vector<CacheStats> stats = cached.summary();
  ASSERT_EQ(stats.size(), 2u);
  EXPECT_EQ(stats[0].name, "double");
  EXPECT_EQ(stats[1].name, "single");
  EXPECT_THAT(stats[0].conditional.cached_steps, Not(IsEmpty()));
  EXPECT_THAT(stats[1].conditional.cached_steps, IsEmpty());
  EXPECT_GT(stats[0].peak_buffer_bytes, 0);
}

TEST(BlockAdapterRequests, ExtraInputsReachEveryBlock) {
  const auto add = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in.at(0) + in.at(1) * in.at(2)};
  };
  CachedBlocks cached(
      {.lists = {{.blocks = {add, add, add}, .forward_pattern = ForwardPattern::kPattern3}}},
      {.cache_config = DBCacheConfig{.Fn_compute_blocks = 1}});
  const at::Tensor x = test::toy_start().hidden;
  const at::Tensor got = cached.forward({.hidden_states = x, .extra = {x, x}}).at(0);
  EXPECT_LT(test::relative_error(got, x + 3 * x * x), 1e-6);
}

TEST(BlockAdapterRequests, ABlockThatThrowsEndsTheRequest) {
  bool breaks = false;
  BlockAdapter adapter = test::toy_adapter(kPattern);
  adapter.lists[0].blocks[3] = [&](const std::vector<at::Tensor>& in) {
    if (breaks) throw std::runtime_error("stopped");
    return test::toy_block(kPattern, 3)(in);
  };
  CachedBlocks cached(adapter, {.cache_config = config()});
  const nn::Streams start = test::toy_start();
  request(cached, start, 2, false);
  breaks = true;
  EXPECT_THROW(request(cached, start, 1, false), std::runtime_error);
  breaks = false;
  const Outcome want = fresh(start, test::kToySteps);
  EXPECT_TRUE(test::same_values(request(cached, start, test::kToySteps, false), want.hidden));
  EXPECT_EQ(cached_steps(cached), want.steps);
}

TEST(BlockAdapterRequests, MasksAreComparedWithTheRequest) {
  DBCacheConfig masked = config();
  masked.steps_computation_mask = {1, 1, 0, 1};
  masked.steps_computation_policy = StepsComputationPolicy::kStatic;
  CachedBlocks cached = toy(masked);
  const nn::Streams start = test::toy_start();
  request(cached, start, 4, true);
  EXPECT_THAT(cached_steps(cached), ElementsAre(2));
  expect_error<ConfigError>([&] { request(cached, start, 5, true); },
                            AllOf(HasSubstr("steps_computation_mask"), HasSubstr("5 steps")));
  request(cached, start, 4, false);
  EXPECT_THAT(cached_steps(cached), ElementsAre(2));
  masked.num_inference_steps = 6;
  expect_error<ConfigError>([&] { toy(masked); }, HasSubstr("4 entries for 6 steps"));
}

TEST(BlockAdapterRequests, NamedMasksFollowTheLengthOfTheRequest) {
  DBCacheConfig by_mask = config();
  by_mask.steps_computation_policy = StepsComputationPolicy::kStatic;
  EnableCacheOptions options{.cache_config = by_mask, .steps_mask_policy = "medium"};
  CachedBlocks cached(test::toy_adapter(kPattern), options);
  for (const int64_t steps : {8, 14}) {
    request(cached, test::toy_start(), steps, true);
    const Steps mask = steps_mask("medium", steps);
    Steps want;
    for (int64_t t = 0; t < steps; ++t) {
      if (mask.at(static_cast<size_t>(t)) == 0) want.push_back(t);
    }
    EXPECT_EQ(cached_steps(cached), want);
  }
  cached.refresh_context();
  expect_error<ConfigError>([&] { request(cached, test::toy_start(), 8, false); },
                            HasSubstr("steps_mask_policy needs the number of steps"));
  by_mask.num_inference_steps = 8;
  cached.refresh_context({.cache_config = by_mask});
  request(cached, test::toy_start(), 8, false);
  EXPECT_THAT(cached_steps(cached), ElementsAre(4, 6));
}

}  // namespace
}  // namespace cachedit
