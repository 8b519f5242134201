#include "cache/config_check.h"

#include <cmath>

#include "base/fail.h"
#include "cache/calibrators/calibrator.h"

namespace cachedit::cache {
namespace {

constexpr const char* kWhere = "cache_config";
constexpr const char* kNeedsMask =
    "static_skips_Fn_blocks needs DBCache, a steps_computation_mask and the static policy";

void at_least(int64_t minimum, int64_t value, const char* field) {
  if (value < minimum) {
    fail<ConfigError>(kWhere, field, " must be at least ", minimum, ": got ", value);
  }
}

void not_negative(double value, const char* field) {
  if (!(value >= 0) || std::isinf(value)) {
    fail<ConfigError>(kWhere, field, " must be a number of at least 0: got ", value);
  }
}

void check_mask(const DBPruneConfig& c) {
  for (const int64_t bit : c.steps_computation_mask) {
    if (bit != 0 && bit != 1) {
      fail<ConfigError>(kWhere, "steps_computation_mask holds 0 (cache) and 1 (compute) only: got ",
                        bit);
    }
  }
}

}  // namespace

void check(const CacheOptions& options) {
  const DBPruneConfig& c = options.config;
  at_least(1, c.Fn_compute_blocks, "Fn_compute_blocks");
  at_least(0, c.Bn_compute_blocks, "Bn_compute_blocks");
  not_negative(c.residual_diff_threshold, "residual_diff_threshold");
  if (c.max_accumulated_residual_diff_threshold) {
    not_negative(*c.max_accumulated_residual_diff_threshold,
                 "max_accumulated_residual_diff_threshold");
  }
  at_least(0, c.max_warmup_steps, "max_warmup_steps");
  at_least(1, c.warmup_interval, "warmup_interval");
  if (c.num_inference_steps) at_least(1, *c.num_inference_steps, "num_inference_steps");
  if (c.force_refresh_step_hint) at_least(1, *c.force_refresh_step_hint, "force_refresh_step_hint");
  if (c.l1_hidden_states_diff_threshold) {
    not_negative(*c.l1_hidden_states_diff_threshold, "l1_hidden_states_diff_threshold");
  }
  not_negative(c.important_condition_threshold, "important_condition_threshold");
  at_least(1, c.downsample_factor, "downsample_factor");
  if (c.enable_separate_cfg.value_or(false) && c.cfg_diff_compute_separate && c.cfg_compute_first) {
    fail<ConfigError>(kWhere,
                      "cfg_compute_first excludes cfg_diff_compute_separate: set the latter to "
                      "false");
  }
  check_mask(c);
  const bool by_mask = options.type == CacheType::kDBCache &&
                       c.steps_computation_policy == StepsComputationPolicy::kStatic;
  if (c.static_skips_Fn_blocks && !by_mask) {
    fail<ConfigError>(kWhere, kNeedsMask);
  }
  if (options.type == CacheType::kDBPrune) {
    not_negative(c.dynamic_prune_threshold_relax_ratio, "dynamic_prune_threshold_relax_ratio");
    if (c.max_dynamic_prune_threshold) {
      not_negative(*c.max_dynamic_prune_threshold, "max_dynamic_prune_threshold");
    }
    for (const int64_t id : c.non_prune_block_ids) at_least(0, id, "non_prune_block_ids");
  }
  if (options.calibrator) check(*options.calibrator);
}

void check_blocks(const CacheOptions& options, int64_t blocks, std::string_view list) {
  const int64_t first = options.config.Fn_compute_blocks;
  const int64_t last = options.config.Bn_compute_blocks;
  if (first + last > blocks) {
    fail<ConfigError>(kWhere, "Fn_compute_blocks + Bn_compute_blocks must not exceed the ", blocks,
                      " blocks of ", list, ": got ", first, " + ", last);
  }
}

void check_steps(const CacheOptions& options, int64_t steps) {
  const auto length = static_cast<int64_t>(options.config.steps_computation_mask.size());
  // Not before a request: a policy's name becomes a mask only then.
  if (options.config.static_skips_Fn_blocks && length == 0) fail<ConfigError>(kWhere, kNeedsMask);
  if (length != 0 && length != steps) {
    fail<ConfigError>(kWhere, "steps_computation_mask must have one entry per step: got ", length,
                      " entries for ", steps, " steps");
  }
}

}  // namespace cachedit::cache
