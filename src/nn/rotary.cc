#include "nn/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include "base/fail.h"
#include "nn/fused_operators.h"

namespace cachedit::nn {

RotaryEmbedding make_rotary(const at::Tensor& positions, const std::vector<int64_t>& axes_dims,
                            double theta) {
  if (positions.dim() != 2 || positions.size(1) != static_cast<int64_t>(axes_dims.size())) {
    fail<ConfigError>("rotary", "positions must be [N, ", axes_dims.size(), "]: got ",
                      positions.sizes());
  }
  const auto f64 = at::TensorOptions().dtype(at::kDouble).device(positions.device());
  std::vector<at::Tensor> cosines, sines;
  for (size_t axis = 0; axis < axes_dims.size(); ++axis) {
    const int64_t dim = axes_dims[axis];
    if (dim <= 0 || dim % 2 != 0) {
      fail<ConfigError>("rotary", "every axis needs an even, positive width: got ", dim);
    }
    const at::Tensor exponents = at::arange(0, dim, 2, f64) / static_cast<double>(dim);
    const at::Tensor freqs = at::pow(theta, exponents).reciprocal();
    const at::Tensor angles =
        at::outer(positions.select(1, static_cast<int64_t>(axis)).to(at::kDouble), freqs);
    cosines.push_back(at::cos(angles).to(at::kFloat));
    sines.push_back(at::sin(angles).to(at::kFloat));
  }
  return {at::complex(at::cat(cosines, 1), at::cat(sines, 1))};
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryEmbedding& rotary) {
  const at::Tensor out = at::empty(x.sizes(), x.options());
  apply_rotary_out(out, x, rotary);
  return out;
}

}  // namespace cachedit::nn
