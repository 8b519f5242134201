#include "nn/modulation.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/layer_norm.h>

namespace cachedit::nn {

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& shift, double eps) {
  const int64_t width = x.size(-1);
  const at::Tensor factor = scale + 1;
  if (x.size(0) == 1) {
    // With one conditioning vector, scale and shift are the affine part of the norm: one pass.
    return at::layer_norm(x, {width}, factor.select(0, 0), shift.select(0, 0), eps);
  }
  const at::Tensor normed = at::layer_norm(x, {width}, {}, {}, eps);
  return at::addcmul(shift.unsqueeze(1), normed, factor.unsqueeze(1));
}

at::Tensor add_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  return at::addcmul(x, gate.unsqueeze(1), y);
}

Modulation::Modulation(const WeightScope& scope, int64_t width, int64_t parts)
    : parts_(parts), linear_(scope / "linear", width, parts * width) {}

std::vector<at::Tensor> Modulation::operator()(const at::Tensor& activated_conditioning) const {
  return linear_(activated_conditioning).chunk(parts_, 1);
}

}  // namespace cachedit::nn
