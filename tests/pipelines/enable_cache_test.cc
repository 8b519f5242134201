// Block caching through a pipeline: what enable_cache() takes, and what generate() then does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cachedit/cachedit.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PipelineCache : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    pipeline_ = load_pipeline(test::demo_model().string(), {.dtype = "fp32", .device = "cpu"});
  }
  static void TearDownTestSuite() { pipeline_.reset(); }
  void TearDown() override { disable_cache(*pipeline_); }

  static GenerateRequest request(int64_t steps = 6) {
    return {.prompt = {"red apple"},
            .height = 32,
            .width = 32,
            .num_inference_steps = steps,
            .seed = 1};
  }
  static GenerateResult draw(const std::string& compact, int64_t steps = 6) {
    enable_cache(*pipeline_, parse_cache_options(compact));
    return pipeline_->generate(request(steps));
  }

  static std::unique_ptr<Pipeline> pipeline_;
};

std::unique_ptr<Pipeline> PipelineCache::pipeline_;

TEST_F(PipelineCache, ThresholdZeroAndDisablingAreBitEqualToNoCache) {
  const GenerateResult plain = pipeline_->generate(request());
  EXPECT_THAT(plain.cache, IsEmpty());
  const GenerateResult never = draw("F1_W0_R0");
  EXPECT_EQ(never.images.at(0).pixels, plain.images.at(0).pixels);
  EXPECT_THAT(never.cache.at(0).conditional.cached_steps, IsEmpty());
  const GenerateResult cached = draw("F1_W1_R0.9");
  EXPECT_NE(cached.images.at(0).pixels, plain.images.at(0).pixels);
  disable_cache(*pipeline_);
  EXPECT_EQ(cache_summary_name(*pipeline_), "");
  disable_cache(*pipeline_);
  const GenerateResult after = pipeline_->generate(request());
  EXPECT_EQ(after.images.at(0).pixels, plain.images.at(0).pixels);
  EXPECT_THAT(after.cache, IsEmpty());
}

TEST_F(PipelineCache, NothingLeaksBetweenRequests) {
  const auto cached_steps = [](int64_t steps) {
    return pipeline_->generate(request(steps)).cache.at(0).conditional.cached_steps;
  };
  enable_cache(*pipeline_, parse_cache_options("F1_W2_R0.5"));
  const std::vector<int64_t> of_12 = cached_steps(12);
  EXPECT_FALSE(of_12.empty());
  EXPECT_THAT(cached_steps(1), IsEmpty());
  EXPECT_EQ(cached_steps(12), of_12);
  GenerateRequest sigmas = request();
  sigmas.num_inference_steps.reset();
  sigmas.sigmas = {1.0, 0.8, 0.6, 0.4, 0.2};
  const GenerateResult custom = pipeline_->generate(sigmas);
  EXPECT_EQ(custom.cache.at(0).executed_steps, 5);
  GenerateRequest larger = request(12);
  larger.height = 64;
  EXPECT_THAT(pipeline_->generate(larger).cache.at(0).conditional.cached_steps,
              ::testing::Each(::testing::Ge(2)));
  EXPECT_EQ(cached_steps(12), of_12);
}

TEST_F(PipelineCache, TrueCfgKeepsTheBranchesApart) {
  GenerateRequest r = request();
  r.negative_prompt = {"blue"};
  r.true_cfg_scale = 3;
  enable_cache(*pipeline_, parse_cache_options("F1_W2_R0.9"));
  const GenerateResult apart = pipeline_->generate(r);
  EXPECT_EQ(apart.cache.at(0).executed_steps, 6);
  EXPECT_EQ(apart.cache.at(0).transformer_executed_steps, 12);
  EXPECT_THAT(apart.cache.at(0).config, HasSubstr("_CFG1_"));
  EXPECT_FALSE(apart.cache.at(0).conditional.cached_steps.empty());
  EXPECT_FALSE(apart.cache.at(0).unconditional.cached_steps.empty());
  EXPECT_THAT(summary(apart), HasSubstr("unconditional"));
  // Without a second pass the default leaves the field alone, so that names stay cache-dit's.
  EXPECT_EQ(pipeline_->generate(request()).cache.at(0).config, "DBCache_F1B0_W2I1M0MC0_R0.9_T0O0");
  enable_cache(*pipeline_, parse_cache_options("F1_W2_R0.9_CFG0"));
  EXPECT_EQ(pipeline_->generate(r).cache.at(0).executed_steps, 12) << "an explicit choice is kept";
}

TEST_F(PipelineCache, BlockListsCountAsOneUnlessAsked) {
  EXPECT_THAT(draw("F1_W2_R0.9").cache, SizeIs(1));
  EnableCacheOptions options = parse_cache_options("F1_W2_R0.9");
  options.separate_block_lists = true;
  options.params_modifiers.resize(2);
  options.params_modifiers[1].cache_config =
      DBCacheConfig{.Fn_compute_blocks = 2, .max_warmup_steps = 6};
  enable_cache(*pipeline_, options);
  const GenerateResult result = pipeline_->generate(request());
  ASSERT_THAT(result.cache, SizeIs(2));
  EXPECT_EQ(result.cache[0].name, "transformer_blocks");
  EXPECT_EQ(result.cache[1].name, "single_transformer_blocks");
  EXPECT_FALSE(result.cache[0].conditional.cached_steps.empty());
  EXPECT_TRUE(result.cache[1].conditional.cached_steps.empty());
  EXPECT_THAT(brief_summary(result), HasSubstr("; single_transformer_blocks DBCache_F2B0"));
  options.separate_block_lists = false;
  test::expect_error<ConfigError>([&] { enable_cache(*pipeline_, options); },
                                  HasSubstr("params_modifiers"));
}

TEST_F(PipelineCache, ANamedMaskFitsEveryNumberOfSteps) {
  EnableCacheOptions options = parse_cache_options("F1_R0.9");
  std::get<DBCacheConfig>(options.cache_config).steps_computation_policy =
      StepsComputationPolicy::kStatic;
  options.steps_mask_policy = "fast";
  enable_cache(*pipeline_, options);
  for (const int64_t steps : {4, 9, 28}) {
    const std::vector<int64_t> mask = steps_mask("fast", steps);
    std::vector<int64_t> zeros;
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) zeros.push_back(static_cast<int64_t>(i));
    }
    EXPECT_EQ(pipeline_->generate(request(steps)).cache.at(0).conditional.cached_steps, zeros);
  }
  EXPECT_THROW(pipeline_->generate(request(5)), InputError);
  options.steps_mask_policy = "turbo";
  test::expect_error<InputError>([&] { enable_cache(*pipeline_, options); }, HasSubstr("'turbo'"));
  options.steps_mask_policy = "fast";
  std::get<DBCacheConfig>(options.cache_config).steps_computation_mask = {1, 0, 1};
  test::expect_error<ConfigError>([&] { enable_cache(*pipeline_, options); },
                                  HasSubstr("steps_computation_mask"));
}

TEST_F(PipelineCache, ARefusedCallChangesNothing) {
  enable_cache(*pipeline_, parse_cache_options("F1_W2_R0.5_T1O1"));
  set_attn_backend(*pipeline_, "native");
  const auto refused = [&](EnableCacheOptions options, const char* field) {
    options.attention_backend = "flash";
    test::expect_error<ConfigError>([&] { enable_cache(*pipeline_, options); }, HasSubstr(field));
    EXPECT_EQ(cache_summary_name(*pipeline_), "DBCache_F1B0_W2I1M0MC0_R0.5_T1O1");
  };
  refused(parse_cache_options("F0"), "Fn_compute_blocks");
  refused(parse_cache_options("F99"), "Fn_compute_blocks + Bn_compute_blocks");
  refused(parse_cache_options("F5B99"), "transformer_blocks");
  refused({.cache_config = DBCacheConfig{.residual_diff_threshold = std::nan("")}},
          "residual_diff_threshold");
  refused(parse_cache_options("F1_T1O5"), "taylorseer_order");
  EnableCacheOptions separate = parse_cache_options("F1B5");
  separate.separate_block_lists = true;
  refused(separate, "blocks of");
  EnableCacheOptions backend = parse_cache_options("F2");
  backend.attention_backend = "bogus";
  EXPECT_THROW(enable_cache(*pipeline_, backend), InputError);
  EXPECT_EQ(cache_summary_name(*pipeline_), "DBCache_F1B0_W2I1M0MC0_R0.5_T1O1");
}

TEST_F(PipelineCache, ABackendAloneLeavesCachingAsItIs) {
  EXPECT_EQ(cache_summary_name(*pipeline_), "");
  enable_cache(*pipeline_, {.attention_backend = "native"});
  EXPECT_EQ(cache_summary_name(*pipeline_), "");
  enable_cache(*pipeline_);
  EXPECT_EQ(cache_summary_name(*pipeline_), "DBCache_F8B0_W8I1M0MC0_R0.08_T0O0");
  enable_cache(*pipeline_, {.attention_backend = "native"});
  EXPECT_EQ(cache_summary_name(*pipeline_), "DBCache_F8B0_W8I1M0MC0_R0.08_T0O0");
  enable_cache(*pipeline_, {.calibrator_config = CalibratorConfig()});
  EXPECT_EQ(cache_summary_name(*pipeline_), "DBCache_F8B0_W8I1M0MC0_R0.08_T1O1");
}

TEST_F(PipelineCache, AMaskOfAnotherLengthIsRefused) {
  enable_cache(*pipeline_, parse_cache_options("F1_SCM1101"));
  test::expect_error<ConfigError>([&] { pipeline_->generate(request(6)); },
                                  AllOf(HasSubstr("steps_computation_mask"), HasSubstr("6")));
}

// What the result tells.

TEST_F(PipelineCache, TheTraceFollowsTheStepsOverRefreshes) {
  EnableCacheOptions options = parse_cache_options("F1_W2_R0.99_FR4_once");
  enable_cache(*pipeline_, options);
  const GenerateResult result = pipeline_->generate(request(8));
  ASSERT_THAT(result.cache_traces, SizeIs(1));
  ASSERT_THAT(result.step_seconds, SizeIs(8));
  const std::vector<CacheStep>& steps = result.cache_traces[0].conditional;
  ASSERT_THAT(steps, SizeIs(8));
  std::vector<int64_t> cached;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].diff.has_value(), i % 4 >= 2) << i;
    if (steps[i].cached) cached.push_back(static_cast<int64_t>(i));
  }
  EXPECT_THAT(cached, ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(result.cache[0].conditional.accumulated_cached_steps, 4);
  EXPECT_THAT(result.cache[0].conditional.cached_steps, ElementsAre(2, 3));
}

TEST_F(PipelineCache, PruningIsCountedInBlocks) {
  const GenerateResult result = draw("DBPrune_F1_W2_R0.99");
  const CacheBranchStats& stats = result.cache.at(0).conditional;
  EXPECT_THAT(stats.pruned_blocks, SizeIs(stats.actual_blocks.size()));
  EXPECT_THAT(summary(result), HasSubstr("pruned"));
  EXPECT_THAT(brief_summary(result), HasSubstr("DBPrune_F1B0_W2I1M0MC0_R0.99_P"));
}

}  // namespace
}  // namespace cachedit
