#include "cache/residual_difference.h"

#include <ATen/TensorOperators.h>

#include <vector>

#include "base/cpu.h"
#include "base/element_type.h"
#include "kernels/difference.h"

namespace cachedit::cache {
namespace {

bool has_kernel(const at::Tensor& t) { return t.is_cpu() && element_type(t.scalar_type()); }

DifferenceSums fused(const at::Tensor& previous, const at::Tensor& states, const at::Tensor& base) {
  const at::Tensor p = previous.contiguous();
  const at::Tensor s = states.contiguous();
  const at::Tensor b = base.defined() ? base.contiguous() : base;
  const kernels::DifferenceSums sums = kernels::difference_sums(
      *element_type(p.scalar_type()), p.const_data_ptr(), s.const_data_ptr(),
      b.defined() ? b.const_data_ptr() : nullptr, p.numel(), cpu_threads(), cpu_isa());
  return {.change = sums.change, .magnitude = sums.magnitude};
}

double sum(const at::Tensor& values) { return values.sum(at::kDouble).item<double>(); }

/// Only the tokens that changed much, each by its own relative difference.
void add_important_tokens(DifferenceSums& sums, const at::Tensor& change,
                          const at::Tensor& magnitude, double threshold) {
  const at::Tensor important = change.mean(-1) / magnitude.mean(-1) > threshold;
  sums.important_tokens = sum(important);
  sums.important_change = sum(change.sum(-1, false, at::kDouble) * important);
  sums.important_magnitude = sum(magnitude.sum(-1, false, at::kDouble) * important);
}

}  // namespace

DifferenceSums difference_sums(const at::Tensor& previous, const at::Tensor& states,
                               const at::Tensor& base, const DifferenceOptions& options) {
  const bool plain = options.downsample_factor == 1 && !(options.important_condition_threshold > 0);
  const bool one_type = !base.defined() || base.scalar_type() == states.scalar_type();
  if (plain && one_type && has_kernel(previous)) return fused(previous, states, base);
  at::Tensor current = every_nth_channel(states, options.downsample_factor);
  if (base.defined()) current = current - every_nth_channel(base, options.downsample_factor);
  const at::Tensor change = (previous - current).abs(), magnitude = previous.abs();
  DifferenceSums sums = {.change = sum(change), .magnitude = sum(magnitude)};
  if (options.important_condition_threshold > 0) {
    add_important_tokens(sums, change, magnitude, options.important_condition_threshold);
  }
  return sums;
}

at::Tensor every_nth_channel(const at::Tensor& states, int64_t n) {
  return n == 1 ? states : states.slice(-1, 0, states.size(-1), n).contiguous();
}

bool shape_matches(const at::Tensor& previous, const at::Tensor& states,
                   int64_t downsample_factor) {
  std::vector<int64_t> kept = states.sizes().vec();
  if (!kept.empty()) kept.back() = (kept.back() + downsample_factor - 1) / downsample_factor;
  return previous.sizes() == at::IntArrayRef(kept) &&
         previous.scalar_type() == states.scalar_type() && previous.device() == states.device();
}

}  // namespace cachedit::cache
