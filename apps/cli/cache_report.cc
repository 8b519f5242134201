#include "cache_report.h"

#include <cmath>
#include <cstdio>
#include <limits>

namespace cachedit::cli {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json config_json(const DBCacheConfig& c) {
  return {{"cache_type", "DBCache"},
          {"Fn_compute_blocks", c.Fn_compute_blocks},
          {"Bn_compute_blocks", c.Bn_compute_blocks},
          {"residual_diff_threshold", c.residual_diff_threshold},
          {"max_accumulated_residual_diff_threshold",
           or_null(c.max_accumulated_residual_diff_threshold)},
          {"max_warmup_steps", c.max_warmup_steps},
          {"warmup_interval", c.warmup_interval},
          {"max_cached_steps", c.max_cached_steps},
          {"max_continuous_cached_steps", c.max_continuous_cached_steps},
          {"enable_separate_cfg", or_null(c.enable_separate_cfg)},
          {"cfg_compute_first", c.cfg_compute_first},
          {"cfg_diff_compute_separate", c.cfg_diff_compute_separate},
          {"num_inference_steps", or_null(c.num_inference_steps)},
          {"steps_computation_mask", c.steps_computation_mask},
          {"steps_computation_policy",
           c.steps_computation_policy == StepsComputationPolicy::kStatic ? "static" : "dynamic"},
          {"static_skips_Fn_blocks", c.static_skips_Fn_blocks},
          {"force_refresh_step_hint", or_null(c.force_refresh_step_hint)},
          {"force_refresh_step_policy",
           c.force_refresh_step_policy == ForceRefreshStepPolicy::kRepeat ? "repeat" : "once"},
          {"l1_hidden_states_diff_threshold", or_null(c.l1_hidden_states_diff_threshold)},
          {"important_condition_threshold", c.important_condition_threshold},
          {"downsample_factor", c.downsample_factor}};
}

Json config_json(const DBPruneConfig& c) {
  Json json = config_json(static_cast<const DBCacheConfig&>(c));
  json["cache_type"] = "DBPrune";
  json["enable_dynamic_prune_threshold"] = c.enable_dynamic_prune_threshold;
  json["max_dynamic_prune_threshold"] = or_null(c.max_dynamic_prune_threshold);
  json["dynamic_prune_threshold_relax_ratio"] = c.dynamic_prune_threshold_relax_ratio;
  json["non_prune_block_ids"] = c.non_prune_block_ids;
  json["force_reduce_calibrator_vram"] = c.force_reduce_calibrator_vram;
  return json;
}

const char* name_of(CalibratorType type) {
  switch (type) {
    case CalibratorType::kTaylorSeer:
      return "taylorseer";
    case CalibratorType::kFoCa:
      return "foca";
    case CalibratorType::kDMD:
      return "dmd";
    case CalibratorType::kLinear:
      break;
  }
  return "linear";
}

Json calibrator_json(const CalibratorConfig& c) {
  Json json = {
      {"calibrator_type", name_of(c.calibrator_type)},
      {"enable_calibrator", c.enable_calibrator},
      {"enable_encoder_calibrator", c.enable_encoder_calibrator},
      {"calibrator_cache_type",
       c.calibrator_cache_type == CalibratorCacheType::kResidual ? "residual" : "hidden_states"}};
  if (c.calibrator_type == CalibratorType::kTaylorSeer) {
    json["taylorseer_order"] = c.taylorseer_order;
  } else if (c.calibrator_type == CalibratorType::kDMD) {
    json["dmd_history"] = c.dmd_history;
    json["dmd_rank"] = c.dmd_rank;
    json["dmd_ridge"] = c.dmd_ridge;
    json["dmd_svd_precision"] = c.dmd_svd_precision;
  } else if (c.calibrator_type == CalibratorType::kLinear) {
    json["linear_coefficients_path"] = c.linear_coefficients_path;
  }
  return json;
}

/// By step. DBPrune decides several times in a step, hence its lists.
Json diffs_json(const CacheBranchStats& branch, bool prunes) {
  Json json = Json::object();
  for (const auto& [step, diffs] : branch.residual_diffs) {
    json[std::to_string(step)] = prunes ? Json(diffs) : Json(diffs.front());
  }
  return json;
}

/// Without equal pictures, whose PSNR is infinite, unless all are.
double mean_psnr(const std::vector<double>& psnrs) {
  double sum = 0;
  int64_t finite = 0;
  for (const double psnr : psnrs) {
    if (std::isinf(psnr)) continue;
    sum += psnr;
    ++finite;
  }
  return finite == 0 ? std::numeric_limits<double>::infinity() : sum / static_cast<double>(finite);
}

}  // namespace

Json cache_settings_json(const std::optional<EnableCacheOptions>& options) {
  if (!options || std::holds_alternative<std::monostate>(options->cache_config)) return nullptr;
  const auto* prune = std::get_if<DBPruneConfig>(&options->cache_config);
  return {
      {"cache_config", prune != nullptr
                           ? config_json(*prune)
                           : config_json(std::get<DBCacheConfig>(options->cache_config))},
      {"calibrator_config",
       options->calibrator_config ? calibrator_json(*options->calibrator_config) : Json(nullptr)},
      {"steps_mask_policy",
       options->steps_mask_policy.empty() ? Json(nullptr) : Json(options->steps_mask_policy)},
      {"separate_block_lists", options->separate_block_lists}};
}

Json cache_stats_json(const GenerateResult& result, int64_t call) {
  Json all = Json::array();
  for (const CacheStats& stats : result.cache) {
    const bool prunes = !stats.conditional.actual_blocks.empty();
    all.push_back({{"call", call},
                   {"name", stats.name},
                   {"config", stats.config},
                   {"executed_steps", stats.executed_steps},
                   {"transformer_executed_steps", stats.transformer_executed_steps},
                   {"cached_steps", stats.conditional.cached_steps},
                   {"cfg_cached_steps", stats.unconditional.cached_steps},
                   {"pruned_blocks", stats.conditional.pruned_blocks},
                   {"cfg_pruned_blocks", stats.unconditional.pruned_blocks},
                   {"actual_blocks", stats.conditional.actual_blocks},
                   {"residual_diffs", diffs_json(stats.conditional, prunes)},
                   {"cfg_residual_diffs", diffs_json(stats.unconditional, prunes)},
                   {"peak_buffer_bytes", stats.peak_buffer_bytes}});
  }
  return all;
}

CachePair compare_pair(const GenerateResult& plain, const GenerateResult& cached) {
  CachePair pair{.plain_seconds = plain.seconds.denoise, .cached_seconds = cached.seconds.denoise};
  std::vector<double> psnrs;
  for (size_t i = 0; i < plain.images.size(); ++i) {
    psnrs.push_back(compare_images(plain.images[i], cached.images[i]).psnr);
  }
  pair.psnr = mean_psnr(psnrs);
  return pair;
}

std::string pair_text(const CachePair& pair) {
  char text[160];
  std::snprintf(text, sizeof(text), "plain %.3f s, cached %.3f s: %.2fx at %.1f dB",
                pair.plain_seconds, pair.cached_seconds, pair.plain_seconds / pair.cached_seconds,
                pair.psnr);
  return text;
}

CachePair total_of(const std::vector<CachePair>& pairs) {
  CachePair total;
  std::vector<double> psnrs;
  for (const CachePair& pair : pairs) {
    total.plain_seconds += pair.plain_seconds;
    total.cached_seconds += pair.cached_seconds;
    psnrs.push_back(pair.psnr);
  }
  total.psnr = mean_psnr(psnrs);
  return total;
}

}  // namespace cachedit::cli
