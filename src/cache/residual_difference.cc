#include "cache/residual_difference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/masked_select.h>

#include <vector>

#include "base/cpu.h"
#include "kernels/difference.h"

namespace cachedit::cache {
namespace {

bool has_kernel(const at::Tensor& t) {
  return t.is_cpu() && (t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16 ||
                        t.scalar_type() == at::kHalf);
}

kernels::ElementType element_type(const at::Tensor& t) {
  if (t.scalar_type() == at::kBFloat16) return kernels::ElementType::kBFloat16;
  return t.scalar_type() == at::kHalf ? kernels::ElementType::kFloat16
                                      : kernels::ElementType::kFloat32;
}

double ratio(double change, double magnitude) { return change / magnitude; }

double fused(const at::Tensor& previous, const at::Tensor& states, const at::Tensor& base) {
  const at::Tensor p = previous.contiguous();
  const at::Tensor s = states.contiguous();
  const at::Tensor b = base.defined() ? base.contiguous() : base;
  const kernels::DifferenceSums sums = kernels::difference_sums(
      element_type(p), p.const_data_ptr(), s.const_data_ptr(),
      b.defined() ? b.const_data_ptr() : nullptr, p.numel(), cpu_threads(), cpu_isa());
  return ratio(sums.change, sums.magnitude);
}

/// Only the tokens that changed much, each by its own relative difference.
double of_important_tokens(const at::Tensor& previous, const at::Tensor& current,
                           double threshold) {
  const at::Tensor change = (previous - current).abs();
  const at::Tensor magnitude = previous.abs();
  const at::Tensor important = change.mean(-1) / magnitude.mean(-1) > threshold;
  if (!important.any().item<bool>()) {
    return ratio(change.mean().item<double>(), magnitude.mean().item<double>());
  }
  const at::Tensor chosen = important.unsqueeze(-1).expand_as(change);
  return ratio(at::masked_select(change, chosen).mean().item<double>(),
               at::masked_select(magnitude, chosen).mean().item<double>());
}

}  // namespace

double relative_difference(const at::Tensor& previous, const at::Tensor& states,
                           const at::Tensor& base, const DifferenceOptions& options) {
  const bool plain = options.downsample_factor == 1 && !(options.important_condition_threshold > 0);
  const bool one_type = !base.defined() || base.scalar_type() == states.scalar_type();
  if (plain && one_type && has_kernel(previous)) return fused(previous, states, base);
  at::Tensor current = every_nth_channel(states, options.downsample_factor);
  if (base.defined()) current = current - every_nth_channel(base, options.downsample_factor);
  if (options.important_condition_threshold > 0) {
    return of_important_tokens(previous, current, options.important_condition_threshold);
  }
  return ratio((previous - current).abs().mean().item<double>(),
               previous.abs().mean().item<double>());
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
