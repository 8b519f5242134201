#include "golden_options.h"

#include <stdexcept>

namespace cachedit::test {
namespace {

using nlohmann::json;

/// Sets `field` where `object` has `key`.
template <class T>
void read(const json& object, const char* key, T& field) {
  if (object.contains(key)) field = object.at(key).get<T>();
}
template <class T>
void read(const json& object, const char* key, std::optional<T>& field) {
  if (object.contains(key)) field = object.at(key).get<T>();
}

CalibratorType calibrator_type(const std::string& name) {
  if (name == "taylorseer") return CalibratorType::kTaylorSeer;
  if (name == "foca") return CalibratorType::kFoCa;
  if (name == "dmd") return CalibratorType::kDMD;
  throw std::invalid_argument(name);
}

}  // namespace

DBPruneConfig golden_config(const json& fields) {
  DBPruneConfig c;
  read(fields, "Fn_compute_blocks", c.Fn_compute_blocks);
  read(fields, "Bn_compute_blocks", c.Bn_compute_blocks);
  read(fields, "residual_diff_threshold", c.residual_diff_threshold);
  read(fields, "max_accumulated_residual_diff_threshold",
       c.max_accumulated_residual_diff_threshold);
  read(fields, "max_warmup_steps", c.max_warmup_steps);
  read(fields, "warmup_interval", c.warmup_interval);
  read(fields, "max_cached_steps", c.max_cached_steps);
  read(fields, "max_continuous_cached_steps", c.max_continuous_cached_steps);
  read(fields, "enable_separate_cfg", c.enable_separate_cfg);
  read(fields, "cfg_compute_first", c.cfg_compute_first);
  read(fields, "cfg_diff_compute_separate", c.cfg_diff_compute_separate);
  read(fields, "steps_computation_mask", c.steps_computation_mask);
  if (fields.value("steps_computation_policy", "dynamic") == "static") {
    c.steps_computation_policy = StepsComputationPolicy::kStatic;
  }
  read(fields, "num_inference_steps", c.num_inference_steps);
  read(fields, "force_refresh_step_hint", c.force_refresh_step_hint);
  if (fields.value("force_refresh_step_policy", "once") == "repeat") {
    c.force_refresh_step_policy = ForceRefreshStepPolicy::kRepeat;
  }
  read(fields, "l1_hidden_states_diff_threshold", c.l1_hidden_states_diff_threshold);
  read(fields, "important_condition_threshold", c.important_condition_threshold);
  read(fields, "downsample_factor", c.downsample_factor);
  read(fields, "enable_dynamic_prune_threshold", c.enable_dynamic_prune_threshold);
  read(fields, "max_dynamic_prune_threshold", c.max_dynamic_prune_threshold);
  read(fields, "dynamic_prune_threshold_relax_ratio", c.dynamic_prune_threshold_relax_ratio);
  read(fields, "non_prune_block_ids", c.non_prune_block_ids);
  read(fields, "force_reduce_calibrator_vram", c.force_reduce_calibrator_vram);
  return c;
}

CalibratorConfig golden_calibrator(const json& fields) {
  CalibratorConfig c;
  c.calibrator_type = calibrator_type(fields.at("calibrator_type"));
  read(fields, "enable_calibrator", c.enable_calibrator);
  read(fields, "enable_encoder_calibrator", c.enable_encoder_calibrator);
  if (fields.value("calibrator_cache_type", "residual") == "hidden_states") {
    c.calibrator_cache_type = CalibratorCacheType::kHiddenStates;
  }
  read(fields, "taylorseer_order", c.taylorseer_order);
  read(fields, "dmd_history", c.dmd_history);
  read(fields, "dmd_rank", c.dmd_rank);
  read(fields, "dmd_ridge", c.dmd_ridge);
  read(fields, "dmd_svd_precision", c.dmd_svd_precision);
  return c;
}

GenerateRequest golden_request(const json& request) {
  GenerateRequest r;
  read(request, "prompt", r.prompt);
  read(request, "negative_prompt", r.negative_prompt);
  read(request, "height", r.height);
  read(request, "width", r.width);
  read(request, "steps", r.num_inference_steps);
  read(request, "seed", r.seed);
  read(request, "guidance_scale", r.guidance_scale);
  read(request, "true_cfg_scale", r.true_cfg_scale);
  read(request, "num_images_per_prompt", r.num_images_per_prompt);
  r.max_sequence_length = 24;
  r.output_type = OutputType::kLatent;
  return r;
}

EnableCacheOptions golden_cache_options(const json& run) {
  EnableCacheOptions options;
  DBPruneConfig config = golden_config(run.at("cache"));
  config.enable_separate_cfg = config.enable_separate_cfg.value_or(false);
  if (run.contains("mask_policy")) {
    config.steps_computation_mask =
        steps_mask(run["mask_policy"].get<std::string>(), run.at("request").at("steps"));
  }
  if (run.at("type") == "dbprune") {
    options.cache_config = config;
  } else {
    options.cache_config = static_cast<const DBCacheConfig&>(config);
  }
  if (run.contains("calibrator")) options.calibrator_config = golden_calibrator(run["calibrator"]);
  for (const json& modifier : run.value("modifiers", json::array())) {
    ParamsModifier m;
    m.cache_config = golden_config(modifier.at("cache"));
    if (modifier.contains("calibrator")) {
      m.calibrator_config = golden_calibrator(modifier["calibrator"]);
    }
    options.params_modifiers.push_back(m);
  }
  options.separate_block_lists = run.value("separate_block_lists", false);
  return options;
}

}  // namespace cachedit::test
