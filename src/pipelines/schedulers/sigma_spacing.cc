#include "pipelines/schedulers/sigma_spacing.h"

#include <cmath>

#include "base/fail.h"
#include "pipelines/schedulers/beta_distribution.h"

namespace cachedit::pipelines {

std::vector<double> linspace(double start, double stop, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n), start);
  if (n < 2) return values;
  const double step = (stop - start) / static_cast<double>(n - 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) * step + start;
  values.back() = stop;
  return values;
}

std::vector<double> karras_sigmas(double first, double last, int64_t n) {
  if (!(first >= 0 && last >= 0)) {
    fail<InputError>("scheduler", "Karras sigmas need noise levels of at least 0: got ", first,
                     " to ", last, "; change the sigmas or the shift");
  }
  constexpr double kRho = 7.0;  // the paper's value, fixed in diffusers
  const double first_root = std::pow(first, 1 / kRho);
  const double last_root = std::pow(last, 1 / kRho);
  std::vector<double> values = linspace(0, 1, n);
  for (double& value : values) {
    value = std::pow(first_root + value * (last_root - first_root), kRho);
  }
  return values;
}

std::vector<double> exponential_sigmas(double first, double last, int64_t n) {
  if (!(first > 0 && last > 0)) {
    fail<InputError>("scheduler", "exponential sigmas need noise levels above 0: got ", first,
                     " to ", last, "; change the sigmas or the shift");
  }
  std::vector<double> values = linspace(std::log(first), std::log(last), n);
  for (double& value : values) value = std::exp(value);
  return values;
}

std::vector<double> beta_sigmas(double first, double last, int64_t n) {
  constexpr double kAlpha = 0.6;  // the paper's values, fixed in diffusers
  constexpr double kBeta = 0.6;
  std::vector<double> values = linspace(0, 1, n);
  for (double& value : values) {
    value = last + beta_quantile(1 - value, kAlpha, kBeta) * (first - last);
  }
  return values;
}

}  // namespace cachedit::pipelines
