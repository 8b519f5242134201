// Every layout gives the single process's latents and cached steps.
#include <gtest/gtest.h>

#include "parallel_support.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"

namespace cachedit {
namespace {

// Sums in another order (parts of sequences, halves of weights) differ by a few ulp per layer;
// steps in which caching extrapolates widen that.
constexpr double kTolerance = 1e-4;

// 3 x 5 image tokens and 13 text tokens: no number of ranks divides both.
GenerateRequest small_request() {
  GenerateRequest r;
  r.prompt = {"a red heart", "two green cats"};
  r.height = 12;
  r.width = 20;
  r.num_inference_steps = 6;
  r.max_sequence_length = 13;
  r.seed = 7;
  r.output_type = OutputType::kLatent;
  return r;
}

GenerateRequest guided_request() {
  GenerateRequest r = small_request();
  r.negative_prompt = {"blue", "blurry"};
  r.true_cfg_scale = 2.5;
  return r;
}

void enable_small_cache(Pipeline& pipeline) {
  DBCacheConfig config;
  config.Fn_compute_blocks = 1;
  config.Bn_compute_blocks = 0;  // a hit leaves the last block out
  config.max_warmup_steps = 1;
  config.residual_diff_threshold = 0.9;
  config.max_continuous_cached_steps = 2;
  enable_cache(pipeline, {.cache_config = config});
}

struct Case {
  int64_t heads;
  bool guided;
};

class ParallelLayouts : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { test::make_flux_with_heads(GetParam().heads, model()); }
  std::filesystem::path model() const { return folder_.path() / "model"; }
  GenerateRequest request() const { return GetParam().guided ? guided_request() : small_request(); }

  test::TempDir folder_;
};

TEST_P(ParallelLayouts, LatentsAndCachedStepsAreTheSingleProcess) {
  const GenerateResult plain = test::generate_on(model(), 1, {}, request());
  const GenerateResult cached = test::generate_on(model(), 1, {}, request(), enable_small_cache);
  const std::vector<int64_t> steps = cached.cache.at(0).conditional.cached_steps;
  ASSERT_FALSE(steps.empty()) << summary(cached);
  ASSERT_LT(steps.size(), 5u) << "the threshold no longer computes anything";
  for (const int64_t ranks : {2, 3, 4, 6, 8}) {
    for (const parallel::Layout& layout :
         test::layouts_of(ranks, GetParam().heads, GetParam().guided)) {
      SCOPED_TRACE(to_string(layout));
      const ParallelismConfig config = test::config_of(layout);
      if (!GetParam().guided) {
        const GenerateResult got = test::generate_on(model(), ranks, config, request());
        EXPECT_LE(test::relative_error(got.latents, plain.latents), kTolerance);
        EXPECT_EQ(got.parallel.layout, to_string(layout));
        EXPECT_EQ(got.parallel.ranks, ranks);
        EXPECT_GT(got.parallel.bytes_sent, 0);
      }
      const GenerateResult hit =
          test::generate_on(model(), ranks, config, request(), enable_small_cache);
      EXPECT_LE(test::relative_error(hit.latents, cached.latents), kTolerance);
      ASSERT_EQ(hit.cache.size(), 1u);
      EXPECT_EQ(hit.cache[0].conditional.cached_steps, steps);
      EXPECT_EQ(hit.cache[0].unconditional.cached_steps,
                cached.cache[0].unconditional.cached_steps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, ParallelLayouts,
                         ::testing::Values(Case{3, false}, Case{3, true}, Case{5, false},
                                           Case{5, true}, Case{24, false}, Case{24, true}),
                         [](const auto& test) {
                           return "Of" + std::to_string(test.param.heads) +
                                  (test.param.guided ? "Guided" : "");
                         });

}  // namespace
}  // namespace cachedit
