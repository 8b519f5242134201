#include <cmath>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/yaml_file.h"
#include "pipelines/cache_choice.h"
#include "pipelines/cache_yaml.h"
#include "pipelines/parallelism_yaml.h"
#include "pipelines/quantize_yaml.h"

namespace cachedit {
namespace pipelines {
namespace {

constexpr const char* kWhere = "write_configs";

/// Lines of one section.
class Section {
 public:
  explicit Section(const char* name) : text_(std::string(name) + ":\n") {}

  void add(const char* key, const std::string& value) {
    text_ += std::string("  ") + key + ": " + value + "\n";
  }
  void add(const char* key, const char* word) { add(key, std::string(word)); }
  void add(const char* key, bool value) { add(key, value ? "true" : "false"); }
  void add(const char* key, int64_t value) { add(key, std::to_string(value)); }
  void add(const char* key, double value) {
    if (!std::isfinite(value)) {
      fail<ConfigError>(kWhere, key, " must be a finite number: got ", value);
    }
    add(key, io::yaml_number(value));
  }
  void add(const char* key, const std::vector<int64_t>& values) {
    std::string list;
    for (const int64_t value : values) list += (list.empty() ? "" : ", ") + std::to_string(value);
    add(key, "[" + list + "]");
  }
  template <class T>
  void add(const char* key, const std::optional<T>& value) {
    if (value) add(key, *value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_cache(Section& out, const DBCacheConfig& c) {
  out.add("Fn_compute_blocks", c.Fn_compute_blocks);
  out.add("Bn_compute_blocks", c.Bn_compute_blocks);
  out.add("residual_diff_threshold", c.residual_diff_threshold);
  out.add("max_accumulated_residual_diff_threshold", c.max_accumulated_residual_diff_threshold);
  out.add("max_warmup_steps", c.max_warmup_steps);
  out.add("warmup_interval", c.warmup_interval);
  out.add("max_cached_steps", c.max_cached_steps);
  out.add("max_continuous_cached_steps", c.max_continuous_cached_steps);
  out.add("enable_separate_cfg", c.enable_separate_cfg);
  out.add("cfg_compute_first", c.cfg_compute_first);
  out.add("cfg_diff_compute_separate", c.cfg_diff_compute_separate);
  out.add("num_inference_steps", c.num_inference_steps);
  if (!c.steps_computation_mask.empty()) {
    out.add("steps_computation_mask", c.steps_computation_mask);
    const bool dynamic = c.steps_computation_policy == StepsComputationPolicy::kDynamic;
    out.add("steps_computation_policy", dynamic ? "dynamic" : "static");
  }
  if (c.force_refresh_step_hint) {
    out.add("force_refresh_step_hint", c.force_refresh_step_hint);
    const bool once = c.force_refresh_step_policy == ForceRefreshStepPolicy::kOnce;
    out.add("force_refresh_step_policy", once ? "once" : "repeat");
  }
  // Fields that cache-dit keeps out of its files, and ignores in them.
  const DBCacheConfig defaults;
  out.add("l1_hidden_states_diff_threshold", c.l1_hidden_states_diff_threshold);
  if (c.static_skips_Fn_blocks) out.add("static_skips_Fn_blocks", true);
  if (c.important_condition_threshold != defaults.important_condition_threshold) {
    out.add("important_condition_threshold", c.important_condition_threshold);
  }
  if (c.downsample_factor != defaults.downsample_factor) {
    out.add("downsample_factor", c.downsample_factor);
  }
}

void add_prune(Section& out, const DBPruneConfig& c) {
  out.add("cache_type", "DBPrune");
  add_cache(out, c);
  out.add("enable_dynamic_prune_threshold", c.enable_dynamic_prune_threshold);
  out.add("max_dynamic_prune_threshold", c.max_dynamic_prune_threshold);
  out.add("dynamic_prune_threshold_relax_ratio", c.dynamic_prune_threshold_relax_ratio);
  if (!c.non_prune_block_ids.empty()) out.add("non_prune_block_ids", c.non_prune_block_ids);
  out.add("force_reduce_calibrator_vram", c.force_reduce_calibrator_vram);
}

/// Beside the file where it lies there, so that the two can be moved together.
std::string coefficients_path(const std::string& path, const std::filesystem::path& folder) {
  const auto absolute = std::filesystem::absolute(path).lexically_normal();
  const auto relative =
      absolute.lexically_relative(std::filesystem::absolute(folder).lexically_normal());
  return relative.empty() || *relative.begin() == ".." ? absolute.string() : relative.string();
}

void add_calibrator(Section& out, const CalibratorConfig& c, const std::filesystem::path& folder) {
  if (!c.enable_calibrator) {
    if (!c.enable_encoder_calibrator) return;  // as no calibrator
    fail<ConfigError>(kWhere, "a calibrator of the encoder's states alone cannot be written");
  }
  const char* cache_type =
      c.calibrator_cache_type == CalibratorCacheType::kResidual ? "residual" : "hidden_states";
  switch (c.calibrator_type) {
    case CalibratorType::kTaylorSeer:
      out.add("enable_taylorseer", true);
      out.add("enable_encoder_taylorseer", c.enable_encoder_calibrator);
      out.add("taylorseer_cache_type", cache_type);
      out.add("taylorseer_order", c.taylorseer_order);
      return;
    case CalibratorType::kDMD:
      out.add("enable_dmd", true);
      out.add("enable_encoder_dmd", c.enable_encoder_calibrator);
      out.add("dmd_history", c.dmd_history);
      out.add("dmd_rank", c.dmd_rank);
      out.add("dmd_ridge", c.dmd_ridge);
      out.add("dmd_svd_precision", io::yaml_text(c.dmd_svd_precision));
      break;
    case CalibratorType::kFoCa:
      out.add("enable_foca", true);
      out.add("enable_encoder_foca", c.enable_encoder_calibrator);
      break;
    case CalibratorType::kLinear:
      out.add("enable_linear", true);
      out.add("enable_encoder_linear", c.enable_encoder_calibrator);
      out.add("linear_coefficients_path",
              io::yaml_text(coefficients_path(c.linear_coefficients_path, folder)));
      break;
  }
  out.add("calibrator_cache_type", cache_type);
}

}  // namespace

std::string cache_configs_text(const EnableCacheOptions& options,
                               const std::filesystem::path& folder) {
  if (!options.params_modifiers.empty()) {
    fail<ConfigError>(kWhere,
                      "params_modifiers cannot be written: the format has no place for "
                      "them");
  }
  if (!options.steps_mask_policy.empty()) {
    fail<ConfigError>(kWhere, "steps_mask_policy '", options.steps_mask_policy,
                      "' cannot be written without a number of steps; set steps_computation_mask "
                      "to steps_mask() of it");
  }
  std::string text;
  if (chooses_caching(options)) {
    Section cache("cache_config");
    if (const auto* prune = std::get_if<DBPruneConfig>(&options.cache_config)) {
      add_prune(cache, *prune);
    } else {
      const auto* config = std::get_if<DBCacheConfig>(&options.cache_config);
      add_cache(cache, config != nullptr ? *config : DBCacheConfig());
    }
    if (options.calibrator_config) add_calibrator(cache, *options.calibrator_config, folder);
    if (options.separate_block_lists) cache.add("separate_block_lists", true);
    text += cache.text();
  }
  text += parallelism_text(options.parallelism_config);
  text += quantize_text(options.quantize_config);
  if (!options.attention_backend.empty()) {
    text += "attention_backend: " + io::yaml_text(options.attention_backend) + "\n";
  }
  return text;
}

}  // namespace pipelines

void write_configs(const std::filesystem::path& yaml, const EnableCacheOptions& options) {
  const std::string text =
      pipelines::cache_configs_text(options, yaml.parent_path().empty() ? "." : yaml.parent_path());
  io::AtomicFile file(yaml);
  file.write(text);
  file.commit();
}

}  // namespace cachedit
