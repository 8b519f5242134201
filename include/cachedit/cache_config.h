// Options of block caching, with the names and defaults of cache-dit 1.5.3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

enum class CacheType {
  /// Dual block cache: the first Fn blocks decide at each step whether the middle ones are reused.
  kDBCache,
  /// Dynamic block prune: every block decides for itself.
  kDBPrune,
};

enum class StepsComputationPolicy {
  kDynamic,  ///< steps marked 0 may be cached, as the residual difference says
  kStatic,   ///< steps marked 0 are cached
};

enum class ForceRefreshStepPolicy {
  kOnce,    ///< at step force_refresh_step_hint
  kRepeat,  ///< every force_refresh_step_hint steps
};

/// DBCache (https://github.com/vipshop/cache-dit). "Step" is a denoising step of one request.
struct DBCacheConfig {
  /// First blocks, always computed; their residual is what the decision compares. At least 1.
  int64_t Fn_compute_blocks = 8;
  /// Last blocks, always computed on top of the reused middle.
  int64_t Bn_compute_blocks = 0;
  /// A step is cached while mean|change of residual| / mean|residual| stays below this. At 0
  /// nothing is cached, from 1 on everything that the other limits allow.
  double residual_diff_threshold = 0.08;
  /// No more caching once the differences of the request add up to this.
  std::optional<double> max_accumulated_residual_diff_threshold;
  /// Steps 0, warmup_interval, 2 * warmup_interval... below this are always computed.
  int64_t max_warmup_steps = 8;
  int64_t warmup_interval = 1;
  /// Limits per request and in a row; negative: none.
  int64_t max_cached_steps = -1;
  int64_t max_continuous_cached_steps = -1;
  /// Conditional and unconditional pass are separate forward calls that share nothing. Default:
  /// what the pipeline does.
  std::optional<bool> enable_separate_cfg;
  /// The unconditional pass comes first in each step.
  bool cfg_compute_first = false;
  /// False: the unconditional pass reuses the conditional one's difference.
  bool cfg_diff_compute_separate = true;
  /// Forward passes per request, where a runner outlives requests: state is dropped after as many.
  std::optional<int64_t> num_inference_steps;
  /// 1: compute; 0: cache as the policy says. Its leading ones limit the warm-up. See steps_mask().
  std::vector<int64_t> steps_computation_mask;
  StepsComputationPolicy steps_computation_policy = StepsComputationPolicy::kDynamic;
  /// With the static policy nothing has to be compared, so cached steps may leave out the Fn
  /// blocks, too: what is kept is then the residual of Fn and middle blocks together. Not in
  /// cache-dit.
  bool static_skips_Fn_blocks = false;
  /// Forget everything before this step: for inputs that change abruptly within a request.
  std::optional<int64_t> force_refresh_step_hint;
  ForceRefreshStepPolicy force_refresh_step_policy = ForceRefreshStepPolicy::kOnce;
  /// Compare hidden states in place of residuals, with this threshold.
  std::optional<double> l1_hidden_states_diff_threshold;
  /// Compare only tokens whose own relative difference exceeds this; 0: all.
  double important_condition_threshold = 0.0;
  /// Compare every n-th channel; saves memory.
  int64_t downsample_factor = 1;
};

/// Dynamic block prune: DBCacheConfig's limits apply, Fn and Bn blocks are never pruned.
struct DBPruneConfig : DBCacheConfig {
  /// Raise the threshold to the mean of this step's first differences times the relax ratio...
  bool enable_dynamic_prune_threshold = false;
  /// ...while that stays below this. Default: twice residual_diff_threshold.
  std::optional<double> max_dynamic_prune_threshold;
  double dynamic_prune_threshold_relax_ratio = 1.25;
  std::vector<int64_t> non_prune_block_ids;
  /// With a calibrator, compare every fourth channel only.
  bool force_reduce_calibrator_vram = false;
};

enum class CalibratorType {
  kTaylorSeer,  ///< Taylor expansion by divided differences (arXiv 2503.06923)
  kFoCa,        ///< Heun-corrected forecast (arXiv 2508.16211)
  kDMD,         ///< dynamic mode decomposition (Schmid 2010), Taylor below 4 snapshots
  kLinear,      ///< per-step least-squares coefficients made by `cachedit tune`
};

/// What a calibrator forecasts.
enum class CalibratorCacheType {
  kResidual,      ///< output minus input of the middle blocks
  kHiddenStates,  ///< their output
};

struct CalibratorConfig {
  CalibratorType calibrator_type = CalibratorType::kTaylorSeer;
  /// Forecast hidden states / encoder states; what is off is reused as it was.
  bool enable_calibrator = true;
  bool enable_encoder_calibrator = true;
  CalibratorCacheType calibrator_cache_type = CalibratorCacheType::kResidual;
  int64_t taylorseer_order = 1;  ///< 0 to 4
  int64_t dmd_history = 6;       ///< snapshots kept, at least 2
  int64_t dmd_rank = 0;          ///< 0: from the spectrum
  double dmd_ridge = 1e-8;
  std::string dmd_svd_precision = "medium";  ///< "low", "medium" or "high"
  /// kLinear: coefficients, written by `cachedit tune`.
  std::string linear_coefficients_path;
};

/// Settings for one block list that differ from the others'. Fields left out keep their value.
struct ParamsModifier {
  std::optional<DBCacheConfig> cache_config;
  std::optional<CalibratorConfig> calibrator_config;
};

/// The mask of a named policy ("slow", "medium", "fast", "ultra": ever fewer computed steps) for a
/// number of steps, equal to cache-dit's. Throws InputError for other names and for 1, 2, 3, 5 and
/// 7 steps, which have none.
CACHEDIT_API std::vector<int64_t> steps_mask(std::string_view mask_policy, int64_t total_steps);

/// The mask of alternating intervals: compute_bins[0] ones, cache_bins[0] zeros, compute_bins[1]
/// ones... cut to total_steps (default: all). Throws InputError if they do not reach it.
CACHEDIT_API std::vector<int64_t> steps_mask(const std::vector<int64_t>& compute_bins,
                                             const std::vector<int64_t>& cache_bins,
                                             std::optional<int64_t> total_steps = std::nullopt);

/// cache-dit's compact name of a configuration, e.g. "DBCache_F8B0_W8I1M0MC0_R0.08".
CACHEDIT_API std::string strify(const DBCacheConfig& config);
CACHEDIT_API std::string strify(const DBPruneConfig& config);
/// "T1O1", "DMDH6", "FoCa", "LIN"; "NONE" for TaylorSeer of order 0.
CACHEDIT_API std::string strify(const CalibratorConfig& config);

}  // namespace cachedit
