#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "nn/linear_forms.h"

namespace cachedit::nn {
namespace {

constexpr double kLargest = 448;  // of e4m3

/// x rounded to e4m3 with this largest magnitude, fp32.
at::Tensor round_with(const at::Tensor& x, const at::Tensor& amax) {
  // Rows of zeros keep a scale of one.
  const at::Tensor scale = at::where(amax.lt(1e-30), 1.0, amax / kLargest);
  return at::clamp(x / scale, -kLargest, kLargest).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
}

}  // namespace

at::Tensor rounded_to_float8(const at::Tensor& x, QuantType type, const at::Tensor& largest) {
  if (x.numel() == 0) return x;
  const at::Tensor wide = x.to(at::kFloat);
  if (type != QuantType::kFloat8PerBlock) {
    at::Tensor amax = largest.defined() ? largest : wide.abs().amax(-1);
    if (type == QuantType::kFloat8PerTensor) amax = amax.amax(1, true);
    return round_with(wide, amax.unsqueeze(-1)).to(x.scalar_type());
  }
  const int64_t width = x.size(-1), blocks = (width + kFloat8Block - 1) / kFloat8Block;
  const at::Tensor padded = at::constant_pad_nd(wide, {0, blocks * kFloat8Block - width});
  const at::Tensor parts = padded.unflatten(-1, {blocks, kFloat8Block});
  const at::Tensor rounded = round_with(parts, parts.abs().amax(-1, true));
  return rounded.flatten(-2).narrow(-1, 0, width).to(x.scalar_type());
}

}  // namespace cachedit::nn
