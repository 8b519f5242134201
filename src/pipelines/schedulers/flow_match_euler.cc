#include "pipelines/schedulers/flow_match_euler.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsub.h>

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/log.h"
#include "pipelines/schedulers/sigma_spacing.h"

namespace cachedit::pipelines {
namespace {

constexpr int64_t kMaxSteps = 100000;

// Custom sigmas and timesteps are float32 arrays in diffusers, the default ones float64; NumPy and
// torch round Python numbers to the array's type before they use them. T is that type.

template <class T>
T static_shift(T sigma, double shift) {
  return static_cast<T>(shift) * sigma / (T{1} + static_cast<T>(shift - 1) * sigma);
}

template <class T>
T dynamic_shift(T sigma, double mu, bool exponential) {
  const T weight = static_cast<T>(exponential ? std::exp(mu) : mu);
  return weight / (weight + (T{1} / sigma - T{1}));
}

/// Stretches the distances from 1 so that the schedule ends at `terminal`.
template <class T>
void stretch_to_terminal(std::vector<T>& sigmas, double terminal) {
  // The only step of a run starts at pure noise and has no end to stretch: diffusers divides by
  // zero here (or by what rounding left of it).
  constexpr T kRounding = static_cast<T>(1e-6);
  if (sigmas.size() == 1 && std::abs(T{1} - sigmas.front()) <= kRounding) return;
  const T scale = (T{1} - sigmas.back()) / static_cast<T>(1 - terminal);
  for (T& sigma : sigmas) sigma = T{1} - (T{1} - sigma) / scale;
}

template <class T>
std::vector<float> to_float(const std::vector<T>& values) {
  std::vector<float> result;
  result.reserve(values.size());
  for (const T value : values) result.push_back(static_cast<float>(value));
  return result;
}

/// From evenly spaced (or custom) sigmas to those of the config, without the last one.
template <class T>
std::vector<float> shape_sigmas(std::vector<T> sigmas, const FlowMatchEulerConfig& config,
                                double mu) {
  const bool exponential = config.time_shift_type == "exponential";
  for (T& sigma : sigmas) {
    sigma = config.use_dynamic_shifting ? dynamic_shift(sigma, mu, exponential)
                                        : static_shift(sigma, config.shift);
  }
  if (config.shift_terminal.value_or(0) != 0) stretch_to_terminal(sigmas, *config.shift_terminal);

  const double first = sigmas.front();
  const double last = sigmas.back();
  const auto n = static_cast<int64_t>(sigmas.size());
  if (config.use_karras_sigmas) return to_float(karras_sigmas(first, last, n));
  if (config.use_exponential_sigmas) return to_float(exponential_sigmas(first, last, n));
  if (config.use_beta_sigmas) return to_float(beta_sigmas(first, last, n));
  return to_float(sigmas);
}

template <class T>
void require_finite(const char* what, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      fail<InputError>("scheduler", what, " must be finite: got ", values[i], " at index ", i);
    }
  }
}

/// The number of steps that a consistent request asks for.
int64_t count_steps(const ScheduleRequest& request) {
  const auto sigmas = static_cast<int64_t>(request.sigmas.size());
  const auto timesteps = static_cast<int64_t>(request.timesteps.size());
  if (!request.num_inference_steps && sigmas == 0 && timesteps == 0) {
    fail<InputError>(
        "scheduler",
        "no steps: got neither num_inference_steps nor sigmas nor timesteps; give one");
  }
  if (sigmas > 0 && timesteps > 0 && sigmas != timesteps) {
    fail<InputError>("scheduler", "sigmas and timesteps must have one length: got ", sigmas,
                     " and ", timesteps);
  }
  const int64_t custom = std::max(sigmas, timesteps);
  const int64_t steps = request.num_inference_steps.value_or(custom);
  if (steps < 1 || steps > kMaxSteps) {
    fail<InputError>("scheduler", "num_inference_steps must lie in 1 to ", kMaxSteps, ": got ",
                     steps);
  }
  if (custom > 0 && custom != steps) {
    fail<InputError>("scheduler", sigmas > 0 ? "sigmas" : "timesteps",
                     " must have num_inference_steps entries: got ", custom, " for ", steps,
                     " steps");
  }
  return steps;
}

void check_values(const ScheduleRequest& request, const FlowMatchEulerConfig& config) {
  require_finite("sigmas", request.sigmas);
  require_finite("timesteps", request.timesteps);
  if (!config.use_dynamic_shifting) return;
  if (!request.mu) {
    fail<InputError>("scheduler", "mu must be given with use_dynamic_shifting: got none");
  }
  require_finite("mu", std::vector<double>{*request.mu});
}

void require_index(const Schedule& schedule, int64_t index) {
  const auto steps = static_cast<int64_t>(schedule.timesteps.size());
  if (index < 0 || index >= steps || schedule.sigmas.size() != schedule.timesteps.size() + 1) {
    fail<InputError>("scheduler", "step index must lie in the schedule: got ", index, " for ",
                     steps, " timesteps and ", schedule.sigmas.size(), " sigmas");
  }
}

void require_same_shape(const char* names, const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    fail<InputError>("scheduler", names, " must have one shape: got ", a.sizes(), " and ",
                     b.sizes());
  }
}

}  // namespace

FlowMatchEulerScheduler::FlowMatchEulerScheduler(const FlowMatchEulerConfig& config)
    : config_(config) {
  config_.validate();
  const auto count = static_cast<float>(config_.num_train_timesteps);
  float first = count / count;
  float last = 1.0F / count;
  // make_schedule shifts again what this shifts; as in diffusers, so that static shifts act twice
  // on the default schedule's end (but once on custom sigmas).
  if (!config_.use_dynamic_shifting) {
    first = static_shift(first, config_.shift);
    last = static_shift(last, config_.shift);
  }
  sigma_max_ = first;
  sigma_min_ = last;
}

Schedule FlowMatchEulerScheduler::make_schedule(const ScheduleRequest& request) const {
  const int64_t steps = count_steps(request);
  check_values(request, config_);
  const double mu = request.mu.value_or(0);
  const auto count = static_cast<float>(config_.num_train_timesteps);

  Schedule schedule;
  schedule.timesteps = to_float(request.timesteps);
  if (!request.sigmas.empty()) {
    schedule.sigmas = shape_sigmas(to_float(request.sigmas), config_, mu);
  } else if (!request.timesteps.empty()) {
    log_warning(
        "[scheduler] timesteps were given without sigmas: they are used as they are, while the "
        "sigmas made from them are shifted, so the two may disagree; give sigmas as well");
    std::vector<float> sigmas = schedule.timesteps;
    for (float& sigma : sigmas) sigma /= count;
    schedule.sigmas = shape_sigmas(std::move(sigmas), config_, mu);
  } else {
    const auto scale = static_cast<double>(config_.num_train_timesteps);
    std::vector<double> sigmas = linspace(sigma_max_ * scale, sigma_min_ * scale, steps);
    for (double& sigma : sigmas) sigma /= scale;
    schedule.sigmas = shape_sigmas(std::move(sigmas), config_, mu);
  }

  if (config_.invert_sigmas) {
    for (float& sigma : schedule.sigmas) sigma = 1.0F - sigma;
  }
  // Inversion makes new timesteps even where custom ones were given, as in diffusers.
  if (schedule.timesteps.empty() || config_.invert_sigmas) {
    schedule.timesteps = schedule.sigmas;
    for (float& timestep : schedule.timesteps) timestep *= count;
  }
  schedule.sigmas.push_back(config_.invert_sigmas ? 1.0F : 0.0F);
  require_finite("the schedule's sigmas", schedule.sigmas);
  require_finite("the schedule's timesteps", schedule.timesteps);
  return schedule;
}

double FlowMatchEulerScheduler::mu_for(int64_t image_seq_len) const {
  const auto base = static_cast<double>(config_.base_image_seq_len);
  const auto span = static_cast<double>(config_.max_image_seq_len - config_.base_image_seq_len);
  const double slope = (config_.max_shift - config_.base_shift) / span;
  const double offset = config_.base_shift - slope * base;
  return static_cast<double>(image_seq_len) * slope + offset;
}

at::Tensor FlowMatchEulerScheduler::step(const Schedule& schedule, int64_t index,
                                         const at::Tensor& model_output, const at::Tensor& sample,
                                         std::optional<at::Generator> generator) const {
  require_index(schedule, index);
  require_same_shape("model output and sample", model_output, sample);
  const float sigma = schedule.sigmas[static_cast<size_t>(index)];
  const float next = schedule.sigmas[static_cast<size_t>(index) + 1];
  const at::Tensor start = sample.to(at::kFloat);
  // A tensor without dimensions leaves the type of what it multiplies: the product is rounded to
  // the model output's type before it is added in float32.
  const auto scalar = [&](float value) { return at::full({}, value, start.options()); };
  if (!config_.stochastic_sampling) {
    return (start + scalar(next - sigma) * model_output).to(model_output.scalar_type());
  }

  if (!generator) {
    fail<InputError>("scheduler",
                     "stochastic_sampling draws noise at every step: got no generator");
  }
  const at::Tensor clean = start - scalar(sigma) * model_output;
  const at::Tensor noise =
      at::randn(start.sizes(), generator, start.options().device(generator->device()))
          .to(start.device());
  const at::Tensor noised = scalar(1.0F - next) * clean + scalar(next) * noise;
  return noised.to(model_output.scalar_type());
}

at::Tensor FlowMatchEulerScheduler::scale_noise(const Schedule& schedule, int64_t index,
                                                const at::Tensor& sample,
                                                const at::Tensor& noise) const {
  require_index(schedule, index);
  require_same_shape("sample and noise", sample, noise);
  // With dimensions, unlike in step(): sigma is rounded to the sample's type first.
  const std::vector<int64_t> ones(static_cast<size_t>(sample.dim()), 1);
  const at::Tensor sigma =
      at::full(ones, schedule.sigmas[static_cast<size_t>(index)], sample.options());
  return sigma * noise + at::rsub(sigma, 1.0) * sample;
}

}  // namespace cachedit::pipelines
