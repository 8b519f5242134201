#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "base/nearest_name.h"
#include "io/json_config.h"
#include "io/json_text.h"
#include "io/yaml_file.h"
#include "pipelines/cache_yaml.h"
#include "pipelines/config_keys.h"
#include "pipelines/parallelism_yaml.h"
#include "pipelines/quantize_yaml.h"

namespace cachedit {
namespace pipelines {
namespace {

using io::JsonConfig;
using nlohmann::json;
using Names = std::vector<std::string>;

const Names& top_keys() {
  static const Names names = {"cache_config", "parallelism_config", "quantize_config",
                              "attention_backend"};
  return names;
}

const Names& prune_keys() {
  static const Names names = {"enable_dynamic_prune_threshold", "max_dynamic_prune_threshold",
                              "dynamic_prune_threshold_relax_ratio", "non_prune_block_ids",
                              "force_reduce_calibrator_vram"};
  return names;
}

Names with(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

const Names& cache_keys() {
  static const Names names = with({"cache_type",
                                   "Fn_compute_blocks",
                                   "Bn_compute_blocks",
                                   "residual_diff_threshold",
                                   "max_accumulated_residual_diff_threshold",
                                   "max_warmup_steps",
                                   "warmup_interval",
                                   "max_cached_steps",
                                   "max_continuous_cached_steps",
                                   "enable_separate_cfg",
                                   "cfg_compute_first",
                                   "cfg_diff_compute_separate",
                                   "num_inference_steps",
                                   "steps_computation_mask",
                                   "steps_computation_policy",
                                   "static_skips_Fn_blocks",
                                   "force_refresh_step_hint",
                                   "force_refresh_step_policy",
                                   "l1_hidden_states_diff_threshold",
                                   "important_condition_threshold",
                                   "downsample_factor",
                                   "enable_taylorseer",
                                   "enable_encoder_taylorseer",
                                   "taylorseer_cache_type",
                                   "taylorseer_order",
                                   "enable_dmd",
                                   "enable_encoder_dmd",
                                   "dmd_history",
                                   "dmd_rank",
                                   "dmd_ridge",
                                   "dmd_svd_precision",
                                   "enable_foca",
                                   "enable_encoder_foca",
                                   "calibrator_cache_type",
                                   "enable_linear",
                                   "enable_encoder_linear",
                                   "linear_coefficients_path",
                                   "separate_block_lists"},
                                  prune_keys());
  return names;
}

/// The value of `key`, or the field's own where it is absent or null.
template <class T>
void read(JsonConfig& config, const char* key, T& field) {
  field = config.get_or<T>(key, field);
}

template <class T>
void read(JsonConfig& config, const char* key, std::optional<T>& field) {
  if (auto value = config.find<T>(key)) field = std::move(value);
}

/// One of two words.
template <class T>
void read_word(JsonConfig& config, const char* key, T& field, const char* first, T first_value,
               const char* second, T second_value) {
  const std::string word = config.get_or<std::string>(key, "");
  if (word.empty()) return;
  if (word != first && word != second) {
    fail<ConfigError>(config.where(), key, " must be ", first, " or ", second, ": got '", word,
                      "'");
  }
  field = word == first ? first_value : second_value;
}

void read_mask(JsonConfig& config, const json& mask, DBCacheConfig& c) {
  if (!mask.is_string()) {
    read(config, "steps_computation_mask", c.steps_computation_mask);
    return;
  }
  const auto policy = config.get<std::string>("steps_computation_mask");
  if (!c.num_inference_steps) {
    fail<ConfigError>(config.where(), "steps_computation_mask '", policy,
                      "' needs num_inference_steps beside it; give it, or the mask as a list");
  }
  try {
    c.steps_computation_mask = steps_mask(policy, *c.num_inference_steps);
  } catch (const InputError& error) {
    fail<ConfigError>(config.where(), "steps_computation_mask: ", error.what());
  }
}

DBPruneConfig read_fields(JsonConfig& config, const json& object) {
  DBPruneConfig c;
  read(config, "Fn_compute_blocks", c.Fn_compute_blocks);
  read(config, "Bn_compute_blocks", c.Bn_compute_blocks);
  read(config, "residual_diff_threshold", c.residual_diff_threshold);
  read(config, "max_accumulated_residual_diff_threshold",
       c.max_accumulated_residual_diff_threshold);
  read(config, "max_warmup_steps", c.max_warmup_steps);
  read(config, "warmup_interval", c.warmup_interval);
  read(config, "max_cached_steps", c.max_cached_steps);
  read(config, "max_continuous_cached_steps", c.max_continuous_cached_steps);
  read(config, "enable_separate_cfg", c.enable_separate_cfg);
  read(config, "cfg_compute_first", c.cfg_compute_first);
  read(config, "cfg_diff_compute_separate", c.cfg_diff_compute_separate);
  read(config, "num_inference_steps", c.num_inference_steps);
  read_mask(config, object.value("steps_computation_mask", json()), c);
  read_word(config, "steps_computation_policy", c.steps_computation_policy, "dynamic",
            StepsComputationPolicy::kDynamic, "static", StepsComputationPolicy::kStatic);
  read(config, "static_skips_Fn_blocks", c.static_skips_Fn_blocks);
  read(config, "force_refresh_step_hint", c.force_refresh_step_hint);
  read_word(config, "force_refresh_step_policy", c.force_refresh_step_policy, "once",
            ForceRefreshStepPolicy::kOnce, "repeat", ForceRefreshStepPolicy::kRepeat);
  read(config, "l1_hidden_states_diff_threshold", c.l1_hidden_states_diff_threshold);
  read(config, "important_condition_threshold", c.important_condition_threshold);
  read(config, "downsample_factor", c.downsample_factor);
  read(config, "enable_dynamic_prune_threshold", c.enable_dynamic_prune_threshold);
  read(config, "max_dynamic_prune_threshold", c.max_dynamic_prune_threshold);
  read(config, "dynamic_prune_threshold_relax_ratio", c.dynamic_prune_threshold_relax_ratio);
  read(config, "non_prune_block_ids", c.non_prune_block_ids);
  read(config, "force_reduce_calibrator_vram", c.force_reduce_calibrator_vram);
  return c;
}

/// A kind of calibrator and the keys that switch it; whether the encoder's states are forecast
/// unless said otherwise differs, as cache-dit has it.
struct CalibratorKeys {
  CalibratorType type;
  const char* enable;
  const char* enable_encoder;
  bool encoder_default;
};

constexpr CalibratorKeys kCalibrators[] = {
    {CalibratorType::kTaylorSeer, "enable_taylorseer", "enable_encoder_taylorseer", false},
    {CalibratorType::kDMD, "enable_dmd", "enable_encoder_dmd", true},
    {CalibratorType::kFoCa, "enable_foca", "enable_encoder_foca", false},
    {CalibratorType::kLinear, "enable_linear", "enable_encoder_linear", true},
};

CalibratorCacheType read_cache_type(JsonConfig& config, CalibratorType type) {
  CalibratorCacheType own = CalibratorCacheType::kResidual;
  const auto word = [&](const char* key) {
    CalibratorCacheType value = CalibratorCacheType::kResidual;
    read_word(config, key, value, "residual", CalibratorCacheType::kResidual, "hidden_states",
              CalibratorCacheType::kHiddenStates);
    return value;
  };
  const CalibratorCacheType taylorseer = word("taylorseer_cache_type");
  const CalibratorCacheType other = word("calibrator_cache_type");
  own = type == CalibratorType::kTaylorSeer ? taylorseer : other;
  if (type == CalibratorType::kTaylorSeer && other != CalibratorCacheType::kResidual &&
      other != own) {
    fail<ConfigError>(config.where(),
                      "calibrator_cache_type has no effect on TaylorSeer: use "
                      "taylorseer_cache_type");
  }
  return own;
}

std::optional<CalibratorConfig> read_calibrator(JsonConfig& config,
                                                const std::filesystem::path& folder) {
  CalibratorConfig c;
  std::optional<CalibratorConfig> chosen;
  const char* chosen_key = nullptr;
  for (const CalibratorKeys& keys : kCalibrators) {
    const bool enable = config.get_or<bool>(keys.enable, false);
    const bool encoder = config.get_or<bool>(keys.enable_encoder, keys.encoder_default);
    if (!enable) continue;
    if (chosen) {
      fail<ConfigError>(config.where(), chosen_key, " and ", keys.enable,
                        " exclude each other: set one of them");
    }
    chosen_key = keys.enable;
    c.calibrator_type = keys.type;
    c.enable_encoder_calibrator = encoder;
    chosen = c;
  }
  c.calibrator_cache_type =
      read_cache_type(config, chosen ? chosen->calibrator_type : CalibratorType::kDMD);
  read(config, "taylorseer_order", c.taylorseer_order);
  read(config, "dmd_history", c.dmd_history);
  read(config, "dmd_rank", c.dmd_rank);
  read(config, "dmd_ridge", c.dmd_ridge);
  read(config, "dmd_svd_precision", c.dmd_svd_precision);
  read(config, "linear_coefficients_path", c.linear_coefficients_path);
  if (!c.linear_coefficients_path.empty()) {
    c.linear_coefficients_path = (folder / c.linear_coefficients_path).string();
  }
  if (chosen) chosen = c;
  return chosen;
}

void read_cache_config(const json& object, const std::string& where,
                       const std::filesystem::path& folder, EnableCacheOptions& options) {
  check_keys(object, cache_keys(), where);
  JsonConfig config(object, where);
  const std::string type = config.get_or<std::string>("cache_type", "DBCache");
  if (type != "DBCache" && type != "DBPrune") {
    fail<ConfigError>(where, "cache_type must be DBCache or DBPrune: got '", type, "'");
  }
  const DBPruneConfig fields = read_fields(config, object);
  if (type == "DBPrune") {
    options.cache_config = fields;
  } else {
    for (const std::string& key : prune_keys()) {
      if (!object.value(key, json()).is_null()) {
        fail<ConfigError>(where, key, " has no effect without cache_type: DBPrune; add that");
      }
    }
    options.cache_config = static_cast<const DBCacheConfig&>(fields);
  }
  options.calibrator_config = read_calibrator(config, folder);
  read(config, "separate_block_lists", options.separate_block_lists);
}

}  // namespace

EnableCacheOptions parse_cache_configs(const json& root, const std::string& where,
                                       const std::filesystem::path& folder) {
  if (!root.is_object() || root.empty()) {
    fail<ConfigError>(where, "must hold keys and values, cache_config for one: got ",
                      io::show_json(root));
  }
  EnableCacheOptions options;
  const auto holds = [&](const std::string& key) { return root.contains(key); };
  if (std::none_of(top_keys().begin(), top_keys().end(), holds)) {
    // The old form: the fields of cache_config stand alone.
    for (const auto& [key, value] : root.items()) {
      if (std::find(cache_keys().begin(), cache_keys().end(), key) == cache_keys().end()) {
        fail<ConfigError>(where, "unknown key: got '", key, "'; did you mean '",
                          nearest_name(key, with(cache_keys(), top_keys())), "'?");
      }
    }
    read_cache_config(root, where, folder, options);
    return options;
  }
  check_keys(root, top_keys(), where);
  if (holds("quantize_config") && !root["quantize_config"].is_null()) {
    options.quantize_config =
        read_quantize_config(root["quantize_config"], where + " quantize_config");
  }
  if (holds("cache_config")) {
    read_cache_config(root["cache_config"], where + " cache_config", folder, options);
  }
  if (holds("parallelism_config") && !root["parallelism_config"].is_null()) {
    options.parallelism_config =
        read_parallelism(root["parallelism_config"], where + " parallelism_config");
  }
  JsonConfig config(root, where);
  read(config, "attention_backend", options.attention_backend);
  return options;
}

}  // namespace pipelines

EnableCacheOptions load_configs(const std::filesystem::path& yaml) {
  return pipelines::parse_cache_configs(io::read_yaml_file(yaml), yaml.string(),
                                        yaml.parent_path());
}

}  // namespace cachedit
