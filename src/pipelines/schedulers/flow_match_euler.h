// Euler steps along a flow-matching (rectified flow) trajectory, with the noise schedules of
// diffusers' FlowMatchEulerDiscreteScheduler. Esser et al. 2024, arXiv 2403.03206.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json_config.h"

namespace cachedit::pipelines {

struct FlowMatchEulerConfig {
  int64_t num_train_timesteps = 1000;
  double shift = 1.0;
  bool use_dynamic_shifting = false;
  double base_shift = 0.5;
  double max_shift = 1.15;
  int64_t base_image_seq_len = 256;
  int64_t max_image_seq_len = 4096;
  bool invert_sigmas = false;
  std::optional<double> shift_terminal;
  bool use_karras_sigmas = false;
  bool use_exponential_sigmas = false;
  bool use_beta_sigmas = false;
  std::string time_shift_type = "exponential";  ///< or "linear"
  bool stochastic_sampling = false;

  /// Throws ConfigError for another class, values out of range, contradicting switches, or unknown
  /// keys.
  static FlowMatchEulerConfig parse(io::JsonConfig& json);
  /// Throws ConfigError for values out of range and contradicting switches.
  void validate() const;
};

/// What set_timesteps takes; exactly as in diffusers, several may be combined.
struct ScheduleRequest {
  std::optional<int64_t> num_inference_steps;
  std::vector<double> sigmas;     ///< empty: none given
  std::vector<double> timesteps;  ///< empty: none given
  /// Required with dynamic shifting, without meaning otherwise (pipelines pass it always).
  std::optional<double> mu;
};

/// A run's noise levels. Values are those that diffusers holds (float32).
struct Schedule {
  std::vector<float> timesteps;  ///< n
  /// n + 1, the last is where the run ends: 0, or 1 if inverted.
  std::vector<float> sigmas;
};

class FlowMatchEulerScheduler {
 public:
  /// Throws ConfigError as validate() does.
  explicit FlowMatchEulerScheduler(const FlowMatchEulerConfig& config);

  const FlowMatchEulerConfig& config() const { return config_; }

  /// diffusers' set_timesteps, with two of its oddities: a static shift acts on the default
  /// schedule's ends twice (at construction and here), and timesteps given without sigmas are kept
  /// while their sigmas are shifted (a warning says so). Throws InputError where diffusers raises
  /// ValueError, and for steps below 1, non-finite values, or values that give a non-finite
  /// schedule. One step from pure noise stays [1, 0] under shift_terminal, where diffusers has NaN.
  Schedule make_schedule(const ScheduleRequest& request) const;

  /// diffusers' calculate_shift with this config's sequence lengths and shifts.
  double mu_for(int64_t image_seq_len) const;

  /// One Euler step from sigmas[index] to sigmas[index + 1]:
  /// sample + (sigma' - sigma) * model_output. As in diffusers, the product has the model output's
  /// dtype, the sum is float32, the result has the model output's dtype again. With
  /// stochastic_sampling the step goes to the predicted clean sample and noises it afresh from
  /// `generator`, which must then be given (InputError otherwise).
  at::Tensor step(const Schedule& schedule, int64_t index, const at::Tensor& model_output,
                  const at::Tensor& sample,
                  std::optional<at::Generator> generator = std::nullopt) const;

  /// Noises a clean sample to sigmas[index]: sigma * noise + (1 - sigma) * sample, every operation
  /// in the sample's dtype, as in diffusers.
  at::Tensor scale_noise(const Schedule& schedule, int64_t index, const at::Tensor& sample,
                         const at::Tensor& noise) const;

 private:
  FlowMatchEulerConfig config_;
  // What diffusers' constructor leaves behind and set_timesteps starts from.
  double sigma_min_ = 0;
  double sigma_max_ = 1;
};

}  // namespace cachedit::pipelines
