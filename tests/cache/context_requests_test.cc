// State over requests: a runner that outlives them refreshes itself, and within a request where the
// options say so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "synthetic_blocks.h"

namespace cachedit {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

DBCacheConfig quick() {
  DBCacheConfig c;
  c.Fn_compute_blocks = 1;
  c.residual_diff_threshold = 0.24;
  c.max_warmup_steps = 2;
  return c;
}

TEST(CacheRequests, ARunnerThatOutlivesARequestForgetsItAfterItsSteps) {
  for (const bool guided : {false, true}) {
    for (const std::optional<int64_t> hint :
         {std::optional<int64_t>(), std::optional<int64_t>(6)}) {
      SCOPED_TRACE(guided);
      DBCacheConfig config = quick();
      config.residual_diff_threshold = 0.6;
      config.enable_separate_cfg = guided;
      config.num_inference_steps = 9;
      config.force_refresh_step_hint = hint;
      cache::RunnerOptions options = test::runner_options(config);
      options.cache.calibrator.emplace();
      const test::SyntheticList list(4);
      const int64_t passes = guided ? 18 : 9;
      cache::CachedBlockRunner runner(options);
      for (const uint64_t request : {0, 1, 2}) {
        // A request of another seed, so that whatever stayed would show.
        cache::CachedBlockRunner fresh(options);
        for (int64_t pass = 0; pass < passes; ++pass) {
          const nn::Streams in = test::synthetic_input(pass, request);
          const nn::StepInfo info{.step = pass, .num_steps = 9};
          const nn::Streams want = fresh.run({list.list()}, in, {}, info);
          const nn::Streams got = runner.run({list.list()}, in, {}, info);
          EXPECT_TRUE(test::same_values(got.hidden, want.hidden)) << request << ", " << pass;
          EXPECT_TRUE(test::same_values(got.encoder, want.encoder)) << request << ", " << pass;
        }
        const CacheStats a = runner.statistics()[0], b = fresh.statistics()[0];
        EXPECT_EQ(a.conditional.cached_steps, b.conditional.cached_steps);
        EXPECT_EQ(a.conditional.accumulated_cached_steps, b.conditional.accumulated_cached_steps);
        EXPECT_EQ(a.executed_steps, 9);
        EXPECT_THAT(a.conditional.cached_steps, Not(IsEmpty()));
      }
    }
  }
}

TEST(CacheRequests, AForcedRefreshBeginsAgainOnceOrRepeatedly) {
  DBCacheConfig config = quick();
  config.residual_diff_threshold = 1.0;
  config.force_refresh_step_hint = 4;
  for (const bool repeat : {false, true}) {
    config.force_refresh_step_policy =
        repeat ? ForceRefreshStepPolicy::kRepeat : ForceRefreshStepPolicy::kOnce;
    const test::SyntheticList list(4);
    const CacheStats stats = test::run_steps(test::runner_options(config), list, 10).stats[0];
    // Two steps of warm-up after each beginning: 0, 4 and, repeatedly, 8.
    EXPECT_EQ(list.calls(1), repeat ? 6 : 4);
    EXPECT_EQ(stats.conditional.accumulated_cached_steps, repeat ? 4 : 6);
    EXPECT_EQ(stats.executed_steps, 10);
    if (repeat) {
      EXPECT_THAT(stats.conditional.cached_steps, IsEmpty());
    } else {
      EXPECT_THAT(stats.conditional.cached_steps, ElementsAre(2, 3, 4, 5));
    }
  }
}

/// The shipped model, small.
class CachePipeline : public ::testing::Test {
 protected:
  static std::unique_ptr<Pipeline> load() {
    return load_pipeline(test::demo_model().string(), {.dtype = "fp32", .device = "cpu"});
  }
  static GenerateRequest request() {
    GenerateRequest r;
    r.prompt = {"red apple"};
    r.height = r.width = 32;
    r.seed = 3;
    r.output_type = OutputType::kLatent;
    return r;
  }
  static EnableCacheOptions caching() {
    EnableCacheOptions options;
    DBCacheConfig config = quick();
    config.residual_diff_threshold = 0.4;
    options.cache_config = config;
    options.calibrator_config = CalibratorConfig();
    return options;
  }
};

TEST_F(CachePipeline, RequestsOfAnyLengthDecideAsInAFreshProcess) {
  const auto pipe = load();
  enable_cache(*pipe, caching());
  std::vector<GenerateRequest> requests(5, request());
  requests[0].num_inference_steps = 1;
  requests[1].num_inference_steps = 12;  // requests[2]: the default
  requests[3].sigmas = {1.0, 0.8, 0.6, 0.3, 0.1};
  requests[4].num_inference_steps = 12;
  requests[4].width = 48;
  requests[4].num_images_per_prompt = 2;
  for (const GenerateRequest& r : requests) {
    const auto fresh = load();
    enable_cache(*fresh, caching());
    const GenerateResult want = fresh->generate(r), got = pipe->generate(r);
    const auto& cached = got.cache.at(0).conditional.cached_steps;
    EXPECT_EQ(cached, want.cache.at(0).conditional.cached_steps);
    EXPECT_EQ(got.cache.at(0).executed_steps, got.num_inference_steps);
    for (const int64_t step : cached) EXPECT_GE(step, 2);
    EXPECT_EQ(cached.empty(), got.num_inference_steps == 1);
    EXPECT_TRUE(test::same_values(got.latents, want.latents));
  }
}

TEST_F(CachePipeline, DisablingLeavesNoTrace) {
  const auto pipe = load();
  GenerateRequest r = request();
  r.num_inference_steps = 8;
  const GenerateResult never = pipe->generate(r);
  EXPECT_THAT(never.cache, IsEmpty());
  for (const int time : {1, 2}) {
    SCOPED_TRACE(time);
    enable_cache(*pipe, caching());
    enable_cache(*pipe, caching());
    const GenerateResult cached = pipe->generate(r);
    EXPECT_FALSE(test::same_values(cached.latents, never.latents));
    disable_cache(*pipe);
    disable_cache(*pipe);
    EXPECT_TRUE(test::same_values(pipe->generate(r).latents, never.latents));
  }
}

TEST_F(CachePipeline, ThresholdZeroGivesTheUncachedPicture) {
  const auto pipe = load();
  GenerateRequest r = request();
  r.num_inference_steps = 6;
  r.true_cfg_scale = 2.0;
  r.negative_prompt = {""};
  const at::Tensor want = pipe->generate(r).latents;
  EnableCacheOptions options = caching();
  std::get<DBCacheConfig>(options.cache_config).residual_diff_threshold = 0;
  enable_cache(*pipe, options);
  EXPECT_TRUE(test::same_values(pipe->generate(r).latents, want));
  DBPruneConfig prune;
  prune.Fn_compute_blocks = 1;
  prune.residual_diff_threshold = 0;
  options.cache_config = prune;
  enable_cache(*pipe, options);
  EXPECT_TRUE(test::same_values(pipe->generate(r).latents, want));
}

}  // namespace
}  // namespace cachedit
