// Reading and checking of a FlowMatchEulerDiscreteScheduler's scheduler_config.json.
#include <cmath>

#include "base/fail.h"
#include "pipelines/schedulers/flow_match_euler.h"

namespace cachedit::pipelines {
namespace {

// Keys of other scheduler classes that stay behind when a checkpoint's scheduler was swapped for
// this one. They set up multistep solvers, the beta schedule of denoising training, or what
// "thresholding" (refused when true) does: this class has none of the three.
void ignore_keys_of_other_classes(io::JsonConfig& json) {
  json.ignore({"beta_start", "beta_end", "beta_schedule", "trained_betas", "steps_offset",
               "solver_order", "solver_type", "solver_p", "predict_x0", "disable_corrector",
               "lower_order_final", "algorithm_type", "dynamic_thresholding_ratio",
               "sample_max_value", "use_flow_sigmas"});
  const std::string_view reason = "FlowMatchEulerDiscreteScheduler does nothing else";
  json.expect<std::string>("prediction_type", "flow_prediction", reason);
  json.expect<std::string>("final_sigmas_type", "zero", reason);
  json.expect<std::string>("timestep_spacing", "linspace", reason);
}

void require_finite(const char* key, double value) {
  if (!std::isfinite(value)) fail<ConfigError>("scheduler", key, " must be finite: got ", value);
}

}  // namespace

void FlowMatchEulerConfig::validate() const {
  constexpr int64_t kMaxTrainTimesteps = int64_t{1} << 24;  // beyond, float32 skips integers
  if (num_train_timesteps < 1 || num_train_timesteps > kMaxTrainTimesteps) {
    fail<ConfigError>("scheduler", "num_train_timesteps must lie in 1 to ", kMaxTrainTimesteps,
                      ": got ", num_train_timesteps);
  }
  if (!(shift > 0) || !std::isfinite(shift)) {
    fail<ConfigError>("scheduler", "shift must be above 0 and finite: got ", shift);
  }
  require_finite("base_shift", base_shift);
  require_finite("max_shift", max_shift);
  if (base_image_seq_len < 1 || max_image_seq_len < 1 || base_image_seq_len == max_image_seq_len) {
    fail<ConfigError>("scheduler",
                      "base_image_seq_len and max_image_seq_len must be positive and differ: got ",
                      base_image_seq_len, " and ", max_image_seq_len);
  }
  if (shift_terminal && !(*shift_terminal >= 0 && *shift_terminal < 1)) {
    fail<ConfigError>("scheduler", "shift_terminal must lie in [0, 1): got ", *shift_terminal);
  }
  if (int{use_karras_sigmas} + int{use_exponential_sigmas} + int{use_beta_sigmas} > 1) {
    fail<ConfigError>("scheduler",
                      "only one of use_karras_sigmas, use_exponential_sigmas and use_beta_sigmas "
                      "can be true: got ",
                      use_karras_sigmas, ", ", use_exponential_sigmas, " and ", use_beta_sigmas);
  }
  if (time_shift_type != "exponential" && time_shift_type != "linear") {
    fail<ConfigError>("scheduler", "time_shift_type must be 'exponential' or 'linear': got '",
                      time_shift_type, "'");
  }
}

FlowMatchEulerConfig FlowMatchEulerConfig::parse(io::JsonConfig& json) {
  json.require_class({"FlowMatchEulerDiscreteScheduler"});
  FlowMatchEulerConfig config;
  const auto read = [&json](const char* key, auto& value) { value = json.get_or(key, value); };
  read("num_train_timesteps", config.num_train_timesteps);
  read("shift", config.shift);
  read("use_dynamic_shifting", config.use_dynamic_shifting);
  read("base_shift", config.base_shift);
  read("max_shift", config.max_shift);
  read("base_image_seq_len", config.base_image_seq_len);
  read("max_image_seq_len", config.max_image_seq_len);
  read("invert_sigmas", config.invert_sigmas);
  config.shift_terminal = json.find<double>("shift_terminal");
  read("use_karras_sigmas", config.use_karras_sigmas);
  read("use_exponential_sigmas", config.use_exponential_sigmas);
  read("use_beta_sigmas", config.use_beta_sigmas);
  read("time_shift_type", config.time_shift_type);
  read("stochastic_sampling", config.stochastic_sampling);

  // diffusers drops flow_shift in silence, although who wrote it meant `shift`.
  const auto flow_shift = json.find<double>("flow_shift");
  if (flow_shift && *flow_shift != config.shift) {
    fail<ConfigError>(json.where(), "flow_shift belongs to other scheduler classes: got ",
                      *flow_shift, " beside shift ", config.shift, "; put the value in 'shift'");
  }
  ignore_keys_of_other_classes(json);
  json.finish();
  config.validate();
  return config;
}

}  // namespace cachedit::pipelines
