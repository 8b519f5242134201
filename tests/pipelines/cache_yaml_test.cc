// load_configs() and write_configs().
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
using ::testing::Not;

class CacheYaml : public ::testing::Test {
 protected:
  EnableCacheOptions load(const std::string& text) const {
    return load_configs(folder_.write("cache.yaml", text));
  }

  template <class ErrorType>
  void expect_refused(const std::string& text, const ::testing::Matcher<std::string>& why) const {
    test::expect_error<ErrorType>([&] { load(text); }, AllOf(HasSubstr("cache.yaml"), why));
  }

  static const DBCacheConfig& cache_of(const EnableCacheOptions& options) {
    return std::get<DBCacheConfig>(options.cache_config);
  }

  test::TempDir folder_;
};

TEST_F(CacheYaml, ReadsEveryFieldOfTheNestedForm) {
  const EnableCacheOptions o = load(R"(cache_config:
  Fn_compute_blocks: 1
  Bn_compute_blocks: 2
  residual_diff_threshold: 0.12
  max_accumulated_residual_diff_threshold: 2
  max_warmup_steps: 3
  warmup_interval: 2
  max_cached_steps: 9
  max_continuous_cached_steps: 4
  enable_separate_cfg: true
  cfg_compute_first: true
  cfg_diff_compute_separate: false
  num_inference_steps: 4
  steps_computation_mask: [1, 0, 0, 1]
  steps_computation_policy: static
  static_skips_Fn_blocks: true
  force_refresh_step_hint: 2
  force_refresh_step_policy: repeat
  l1_hidden_states_diff_threshold: 0.5
  important_condition_threshold: 0.25
  downsample_factor: 2
  enable_taylorseer: true
  enable_encoder_taylorseer: true
  taylorseer_cache_type: hidden_states
  taylorseer_order: 2
  separate_block_lists: yes
parallelism_config:
  ulysses_size: 1
  attention_backend: flash
attention_backend: auto
)");
  const DBCacheConfig& c = cache_of(o);
  EXPECT_EQ(c.Fn_compute_blocks, 1);
  EXPECT_EQ(c.Bn_compute_blocks, 2);
  EXPECT_EQ(c.residual_diff_threshold, 0.12);
  EXPECT_EQ(c.max_accumulated_residual_diff_threshold, 2);
  EXPECT_EQ(c.max_warmup_steps, 3);
  EXPECT_EQ(c.warmup_interval, 2);
  EXPECT_EQ(c.max_cached_steps, 9);
  EXPECT_EQ(c.max_continuous_cached_steps, 4);
  EXPECT_EQ(c.enable_separate_cfg, true);
  EXPECT_TRUE(c.cfg_compute_first);
  EXPECT_FALSE(c.cfg_diff_compute_separate);
  EXPECT_EQ(c.num_inference_steps, 4);
  EXPECT_THAT(c.steps_computation_mask, ElementsAre(1, 0, 0, 1));
  EXPECT_EQ(c.steps_computation_policy, StepsComputationPolicy::kStatic);
  EXPECT_TRUE(c.static_skips_Fn_blocks);
  EXPECT_EQ(c.force_refresh_step_hint, 2);
  EXPECT_EQ(c.force_refresh_step_policy, ForceRefreshStepPolicy::kRepeat);
  EXPECT_EQ(c.l1_hidden_states_diff_threshold, 0.5);
  EXPECT_EQ(c.important_condition_threshold, 0.25);
  EXPECT_EQ(c.downsample_factor, 2);
  ASSERT_TRUE(o.calibrator_config);
  EXPECT_EQ(o.calibrator_config->calibrator_type, CalibratorType::kTaylorSeer);
  EXPECT_TRUE(o.calibrator_config->enable_encoder_calibrator);
  EXPECT_EQ(o.calibrator_config->calibrator_cache_type, CalibratorCacheType::kHiddenStates);
  EXPECT_EQ(o.calibrator_config->taylorseer_order, 2);
  EXPECT_TRUE(o.separate_block_lists);
  EXPECT_EQ(o.parallelism_config.attention_backend, "flash");
  EXPECT_EQ(o.attention_backend, "auto");
}

TEST_F(CacheYaml, CalibratorsHaveCacheDitsDefaults) {
  const auto calibrator = [&](const std::string& lines) {
    return *load("cache_config:\n" + lines).calibrator_config;
  };
  EXPECT_FALSE(calibrator("  enable_taylorseer: true\n").enable_encoder_calibrator);
  EXPECT_FALSE(calibrator("  enable_foca: true\n").enable_encoder_calibrator);
  const CalibratorConfig dmd = calibrator(
      "  enable_dmd: true\n  dmd_history: 5\n  dmd_rank: 2\n  dmd_ridge: 1e-6\n"
      "  dmd_svd_precision: high\n  calibrator_cache_type: hidden_states\n");
  EXPECT_EQ(dmd.calibrator_type, CalibratorType::kDMD);
  EXPECT_TRUE(dmd.enable_encoder_calibrator);
  EXPECT_EQ(dmd.dmd_history, 5);
  EXPECT_EQ(dmd.dmd_rank, 2);
  EXPECT_EQ(dmd.dmd_ridge, 1e-6);
  EXPECT_EQ(dmd.dmd_svd_precision, "high");
  EXPECT_EQ(dmd.calibrator_cache_type, CalibratorCacheType::kHiddenStates);
  EXPECT_FALSE(
      calibrator("  enable_dmd: true\n  enable_encoder_dmd: false\n").enable_encoder_calibrator);
  EXPECT_FALSE(load("cache_config:\n  enable_taylorseer: false\n").calibrator_config);
}

TEST_F(CacheYaml, ReadsTheOldFlatFormAndPruning) {
  const EnableCacheOptions o = load(
      "cache_type: DBPrune\nFn_compute_blocks: 2\nenable_dynamic_prune_threshold: true\n"
      "max_dynamic_prune_threshold: 0.3\ndynamic_prune_threshold_relax_ratio: 1.5\n"
      "non_prune_block_ids: [3, 5]\nforce_reduce_calibrator_vram: true\n");
  const auto& c = std::get<DBPruneConfig>(o.cache_config);
  EXPECT_EQ(c.Fn_compute_blocks, 2);
  EXPECT_TRUE(c.enable_dynamic_prune_threshold);
  EXPECT_EQ(c.max_dynamic_prune_threshold, 0.3);
  EXPECT_EQ(c.dynamic_prune_threshold_relax_ratio, 1.5);
  EXPECT_THAT(c.non_prune_block_ids, ElementsAre(3, 5));
  EXPECT_TRUE(c.force_reduce_calibrator_vram);
}

TEST_F(CacheYaml, AFileMayHoldTheBackendAlone) {
  const EnableCacheOptions o = load("attention_backend: flash\n");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(o.cache_config));
  EXPECT_EQ(o.attention_backend, "flash");
}

TEST_F(CacheYaml, ANamedMaskNeedsTheNumberOfSteps) {
  EXPECT_EQ(cache_of(load("cache_config:\n  steps_computation_mask: fast\n"
                          "  num_inference_steps: 28\n"))
                .steps_computation_mask,
            steps_mask("fast", 28));
  expect_refused<ConfigError>("cache_config:\n  steps_computation_mask: fast\n",
                              HasSubstr("num_inference_steps"));
  expect_refused<ConfigError>(
      "cache_config:\n  steps_computation_mask: turbo\n  num_inference_steps: 28\n",
      AllOf(HasSubstr("'turbo'"), HasSubstr("slow, medium, fast")));
}

TEST_F(CacheYaml, RefusalsNameTheKeyAndTheNearestKnownOne) {
  expect_refused<ConfigError>(
      "cache_config:\n  Fn_compute_block: 1\n",
      AllOf(HasSubstr("'Fn_compute_block'"), HasSubstr("did you mean 'Fn_compute_blocks'")));
  expect_refused<ConfigError>("cash_config:\n  Fn_compute_blocks: 1\n",
                              HasSubstr("did you mean 'cache_config'"));
  expect_refused<ConfigError>("attention_backend: flash\nFn_compute_blocks: 1\n",
                              HasSubstr("'Fn_compute_blocks'"));
  expect_refused<ConfigError>("parallelism_config:\n  ulyses_size: 1\n",
                              HasSubstr("did you mean 'ulysses_size'"));
  expect_refused<ConfigError>("cache_config:\n  Fn_compute_blocks: one\n",
                              AllOf(HasSubstr("Fn_compute_blocks"), HasSubstr("one")));
  expect_refused<ConfigError>("cache_config:\n  cache_type: DBCash\n", HasSubstr("'DBCash'"));
  expect_refused<ConfigError>("cache_config:\n  steps_computation_policy: lazy\n",
                              HasSubstr("dynamic or static"));
  expect_refused<ConfigError>("cache_config:\n  enable_dmd: true\n  enable_foca: true\n",
                              AllOf(HasSubstr("enable_dmd"), HasSubstr("enable_foca")));
  expect_refused<ConfigError>("cache_config:\n  non_prune_block_ids: [1]\n",
                              HasSubstr("cache_type: DBPrune"));
  expect_refused<ConfigError>("cache_config: 8\n", HasSubstr("keys and values"));
  expect_refused<ConfigError>("", HasSubstr("cache_config"));
  expect_refused<ConfigError>("parallelism_config:\n  ulysses: 2\n  ulysses_size: 4\n",
                              HasSubstr("ulysses and ulysses_size must agree: got 2 and 4"));
  expect_refused<ConfigError>("parallelism_config:\n  ulysses: auto\n  tp_size: auto\n",
                              HasSubstr("only one size may be auto"));
  expect_refused<ConfigError>("parallelism_config:\n  cp_plan: {a: 1}\n", HasSubstr("cp_plan"));
  expect_refused<ConfigError>("parallelism_config:\n  tp_size: many\n", HasSubstr("tp_size"));
  expect_refused<ConfigError>("quantize_config:\n  quant_type: fp8\n",
                              AllOf(HasSubstr("quantize_config"), HasSubstr("got 'fp8'")));
}

TEST_F(CacheYaml, PathsInItStartAtItsFolder) {
  const EnableCacheOptions o =
      load("cache_config:\n  enable_linear: true\n  linear_coefficients_path: fitted.json\n");
  EXPECT_EQ(o.calibrator_config->calibrator_type, CalibratorType::kLinear);
  EXPECT_EQ(o.calibrator_config->linear_coefficients_path, (folder_ / "fitted.json").string());
}

TEST_F(CacheYaml, ParallelismConfigHasUpstreamsKeysAndShortForms) {
  const ParallelismConfig long_form = load(R"(
parallelism_config:
  backend: auto
  ulysses_size: 4
  ring_size: 2
  tp_size: null
  cfg_size: 2
  ulysses_anything: true
  ulysses_float8: true
  ulysses_async: yes
  ring_rotate_method: allgather
  ring_convert_to_fp32: false
  extra_parallel_modules: [text_encoder_2, vae]
)")
                                          .parallelism_config;
  const ParallelismConfig want{.ulysses_size = 4,
                               .ring_size = 2,
                               .cfg_size = 2,
                               .ulysses_anything = true,
                               .ulysses_float8 = true,
                               .ulysses_async = true,
                               .ring_rotate_method = "allgather",
                               .ring_convert_to_fp32 = false,
                               .extra_parallel_modules = {"text_encoder_2", "vae"}};
  EXPECT_EQ(long_form, want);
  const ParallelismConfig short_form =
      load(
          "parallelism_config:\n  ulysses: auto\n  tp: 2\n  parallel_kwargs:\n"
          "    experimental_ulysses_async: true\n    attention_backend: flash\n")
          .parallelism_config;
  EXPECT_EQ(short_form, (ParallelismConfig{.tp_size = 2,
                                           .auto_size = "ulysses_size",
                                           .attention_backend = "flash",
                                           .ulysses_async = true}));
}

// Writing.

TEST_F(CacheYaml, WhatIsWrittenReadsBackEqual) {
  EnableCacheOptions all =
      parse_cache_options("F2B1_W3I2M7MC2_R1e-08_SCM1011_static_N4_CFG1_DMDH5l");
  all.calibrator_config->dmd_ridge = 1e-9;
  all.calibrator_config->enable_encoder_calibrator = false;
  all.separate_block_lists = true;
  all.attention_backend = "flash";
  std::get<DBCacheConfig>(all.cache_config).force_refresh_step_hint = 3;
  std::get<DBCacheConfig>(all.cache_config).l1_hidden_states_diff_threshold = 0.5;
  std::get<DBCacheConfig>(all.cache_config).max_accumulated_residual_diff_threshold = 1;
  EnableCacheOptions prune = parse_cache_options("DBPrune_F1B0_R0.1_T1O2");
  std::get<DBPruneConfig>(prune.cache_config).non_prune_block_ids = {1, 2};
  std::get<DBPruneConfig>(prune.cache_config).max_dynamic_prune_threshold = 0.25;
  EnableCacheOptions linear = parse_cache_options("F1B0_LIN");
  linear.calibrator_config->linear_coefficients_path = (folder_ / "sub/fitted.json").string();
  EnableCacheOptions backend;
  backend.parallelism_config.attention_backend = "auto";
  EnableCacheOptions parallel;
  parallel.parallelism_config = {.tp_size = 2,
                                 .auto_size = "ring_size",
                                 .attention_backend = "flash",
                                 .ring_rotate_method = "allgather",
                                 .ring_convert_to_fp32 = false,
                                 .extra_parallel_modules = {"vae"}};
  for (const EnableCacheOptions& options : {all, prune, linear, backend, parallel,
                                            EnableCacheOptions{}, parse_cache_options("F1_NONE")}) {
    write_configs(folder_ / "written.yaml", options);
    const std::string first = test::read_bytes(folder_ / "written.yaml");
    write_configs(folder_ / "again.yaml", load_configs(folder_ / "written.yaml"));
    EXPECT_EQ(test::read_bytes(folder_ / "again.yaml"), first);
  }
  write_configs(folder_ / "written.yaml", all);
  const EnableCacheOptions read = load_configs(folder_ / "written.yaml");
  EXPECT_EQ(strify(cache_of(read)), strify(cache_of(all)));
  EXPECT_EQ(cache_of(read).residual_diff_threshold, 1e-8);
  EXPECT_EQ(cache_of(read).max_accumulated_residual_diff_threshold, 1);
  EXPECT_EQ(read.calibrator_config->dmd_ridge, 1e-9);
  EXPECT_EQ(read.calibrator_config->dmd_svd_precision, "low");
  EXPECT_FALSE(read.calibrator_config->enable_encoder_calibrator);
  EXPECT_EQ(read.attention_backend, "flash");
}

TEST_F(CacheYaml, CoefficientsBesideTheFileMoveWithIt) {
  EnableCacheOptions options = parse_cache_options("F1B0_LIN");
  options.calibrator_config->linear_coefficients_path = (folder_ / "fitted.json").string();
  write_configs(folder_ / "cache.yaml", options);
  EXPECT_THAT(test::read_bytes(folder_ / "cache.yaml"),
              AllOf(HasSubstr("linear_coefficients_path: \"fitted.json\""),
                    Not(HasSubstr(folder_.path().string()))));
  options.calibrator_config->linear_coefficients_path = "/elsewhere/fitted.json";
  write_configs(folder_ / "cache.yaml", options);
  EXPECT_EQ(load_configs(folder_ / "cache.yaml").calibrator_config->linear_coefficients_path,
            "/elsewhere/fitted.json");
}

TEST_F(CacheYaml, WhatTheFormatCannotHoldIsRefusedAndWritesNothing) {
  const auto refused = [&](const EnableCacheOptions& options, const char* field) {
    test::expect_error<ConfigError>([&] { write_configs(folder_ / "no.yaml", options); },
                                    HasSubstr(field));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "no.yaml"));
  };
  EnableCacheOptions options;
  options.params_modifiers.resize(1);
  refused(options, "params_modifiers");
  options = {};
  options.steps_mask_policy = "fast";
  refused(options, "steps_mask_policy");
  options = {};
  options.cache_config = DBCacheConfig{.residual_diff_threshold = std::nan("")};
  refused(options, "residual_diff_threshold");
  options = parse_cache_options("F1_FoCa");
  options.calibrator_config->enable_calibrator = false;
  refused(options, "encoder");
}

}  // namespace
}  // namespace cachedit
