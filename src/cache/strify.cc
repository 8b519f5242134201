// Compact names of cache configurations, as cache-dit's strify() writes them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "cachedit/cache_config.h"

namespace cachedit {
namespace {

/// The shortest decimal that reads back as the same number, in Python's form: ".0" after whole
/// numbers, an exponent below 1e-4 and from 1e16 on.
std::string number(double value) {
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string shortest(text, end.ptr);
  return shortest.find_first_of(".en") == std::string::npos ? shortest + ".0" : shortest;
}

std::string limits(const char* type, const DBCacheConfig& c) {
  return std::string(type) + "_F" + std::to_string(c.Fn_compute_blocks) + "B" +
         std::to_string(c.Bn_compute_blocks) + "_W" + std::to_string(c.max_warmup_steps) + "I" +
         std::to_string(c.warmup_interval) + "M" +
         std::to_string(std::max<int64_t>(0, c.max_cached_steps)) + "MC" +
         std::to_string(std::max<int64_t>(0, c.max_continuous_cached_steps)) + "_R" +
         number(c.residual_diff_threshold);
}

}  // namespace

std::string strify(const DBCacheConfig& config) {
  std::string text = limits("DBCache", config);
  if (!config.steps_computation_mask.empty()) {
    text += "_SCM";
    for (const int64_t bit : config.steps_computation_mask) text += std::to_string(bit);
    text += config.steps_computation_policy == StepsComputationPolicy::kDynamic ? "_dynamic"
                                                                                : "_static";
  }
  if (config.num_inference_steps) text += "_N" + std::to_string(*config.num_inference_steps);
  if (config.force_refresh_step_hint) {
    text += "_FR" + std::to_string(*config.force_refresh_step_hint);
    text += config.force_refresh_step_policy == ForceRefreshStepPolicy::kOnce ? "_once" : "_repeat";
  }
  if (config.enable_separate_cfg) text += *config.enable_separate_cfg ? "_CFG1" : "_CFG0";
  return text;
}

std::string strify(const DBPruneConfig& config) { return limits("DBPrune", config); }

std::string strify(const CalibratorConfig& config) {
  switch (config.calibrator_type) {
    case CalibratorType::kTaylorSeer:
      return config.taylorseer_order == 0 ? "NONE"
                                          : "T1O" + std::to_string(config.taylorseer_order);
    case CalibratorType::kFoCa:
      return "FoCa";
    case CalibratorType::kDMD: {
      const std::string name = "DMDH" + std::to_string(config.dmd_history);
      return config.dmd_svd_precision == "medium" ? name
                                                  : name + config.dmd_svd_precision.substr(0, 1);
    }
    case CalibratorType::kLinear:
      return "LIN";
  }
  return "NONE";
}

}  // namespace cachedit
