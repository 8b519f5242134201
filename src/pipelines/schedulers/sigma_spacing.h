// Ways to place n noise levels between a first and a last one. All compute in float64, as NumPy
// does for diffusers.
#pragma once

#include <cstdint>
#include <vector>

namespace cachedit::pipelines {

/// n evenly spaced values with NumPy's rounding: i * step + start, the last exactly `stop`.
/// n = 1 gives {start}.
std::vector<double> linspace(double start, double stop, int64_t n);

/// Even in sigma^(1/7). Karras et al. 2022, arXiv 2206.00364. Throws InputError for a negative
/// level, which has no real root.
std::vector<double> karras_sigmas(double first, double last, int64_t n);

/// Even in log sigma. Throws InputError unless both levels are above 0.
std::vector<double> exponential_sigmas(double first, double last, int64_t n);

/// Quantiles of the beta distribution with both parameters 0.6: dense at the two ends.
std::vector<double> beta_sigmas(double first, double last, int64_t n);

}  // namespace cachedit::pipelines
