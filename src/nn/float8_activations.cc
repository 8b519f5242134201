#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include <optional>

#include "base/cpu.h"
#include "base/element_type.h"
#include "kernels/operators.h"
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

/// Whether the kernel takes t [B, N, features].
bool is_supported(const at::Tensor& t) {
  return t.is_cpu() && t.dim() == 3 && element_type(t.scalar_type()) && t.stride(2) == 1;
}

kernels::RowStrides row_strides(const at::Tensor& t) {
  return {.batch = t.stride(0), .row = t.stride(1)};
}

/// [B, N]
at::Tensor row_magnitudes(const at::Tensor& x) {
  at::Tensor largest = at::empty({x.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  kernels::row_magnitudes({.type = *element_type(x.scalar_type()),
                           .batch = x.size(0),
                           .rows = x.size(1),
                           .columns = x.size(2),
                           .x = x.const_data_ptr(),
                           .x_strides = row_strides(x),
                           .magnitude = largest.mutable_data_ptr<float>()},
                          cpu_threads(), cpu_isa());
  return largest;
}

/// `largest` is contiguous, or undefined: the kernel looks for it.
void round_out(const at::Tensor& out, const at::Tensor& x, int64_t group,
               const at::Tensor& largest) {
  kernels::round_to_float8(
      {.type = *element_type(x.scalar_type()),
       .batch = x.size(0),
       .rows = x.size(1),
       .columns = x.size(2),
       .group = group,
       .x = x.const_data_ptr(),
       .x_strides = row_strides(x),
       .out = out.mutable_data_ptr(),
       .out_strides = row_strides(out),
       .magnitude = largest.defined() ? largest.const_data_ptr<float>() : nullptr},
      cpu_threads(), cpu_isa());
}

/// What scales are taken from where they cover more than a row of one part; else undefined.
at::Tensor shared_magnitudes(const at::Tensor& x, const at::Tensor& second, QuantType type,
                             const at::Tensor& given) {
  if (type == QuantType::kFloat8PerBlock) return {};
  const bool per_item = type == QuantType::kFloat8PerTensor;
  at::Tensor largest = given;
  if (!largest.defined()) {
    if (!second.defined() && !per_item) return {};
    largest = row_magnitudes(x);
    if (second.defined()) largest = at::maximum(largest, row_magnitudes(second));
  }
  if (per_item) largest = largest.amax(1, true).expand(largest.sizes());
  return largest.contiguous();
}

}  // namespace

at::Tensor rounded_to_float8(const at::Tensor& x, const at::Tensor& second, QuantType type,
                             const at::Tensor& largest) {
  const int64_t group = type == QuantType::kFloat8PerBlock ? kFloat8Block : 0;
  const bool parts_share_groups = second.defined() && group > 0 && x.size(-1) % group != 0;
  if (!is_supported(x) || (second.defined() && !is_supported(second)) || parts_share_groups) {
    if (second.defined()) return rounded_to_float8(at::cat({x, second}, -1), {}, type, largest);
    return reference::rounded_to_float8(x, type, largest);
  }
  const int64_t width = x.size(2), all = width + (second.defined() ? second.size(2) : 0);
  at::Tensor out = at::empty({x.size(0), x.size(1), all}, x.options());
  if (out.numel() == 0) return out;
  const at::Tensor shared = shared_magnitudes(x, second, type, largest);
  round_out(out.narrow(2, 0, width), x, group, shared);
  if (second.defined()) round_out(out.narrow(2, width, all - width), second, group, shared);
  return out;
}

namespace reference {

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

}  // namespace reference
}  // namespace cachedit::nn
