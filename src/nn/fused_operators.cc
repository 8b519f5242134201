#include "nn/fused_operators.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <optional>

#include "base/cpu.h"
#include "base/element_type.h"
#include "base/fail.h"
#include "kernels/operators.h"
#include "nn/kernel_activation.h"

namespace cachedit::nn {
namespace {

std::optional<kernels::ElementType> element_type_of(const at::Tensor& t) {
  return t.is_cpu() ? element_type(t.scalar_type()) : std::nullopt;
}

bool has_dense_rows(const at::Tensor& t) {
  return t.dim() > 0 && (t.stride(-1) == 1 || t.size(-1) == 1);
}

/// Whether kernels take t as x or out.
bool is_supported(const at::Tensor& t) {
  return element_type_of(t).has_value() && has_dense_rows(t);
}

/// Whether kernels take t beside x as another array of its shape.
bool is_like(const at::Tensor& t, const at::Tensor& x) {
  return t.is_cpu() && t.scalar_type() == x.scalar_type() && t.sizes() == x.sizes() &&
         has_dense_rows(t);
}

bool has_vector_type(const at::Tensor& t, const at::Tensor& x) {
  return t.is_cpu() && (t.scalar_type() == x.scalar_type() || t.scalar_type() == at::kFloat) &&
         has_dense_rows(t);
}

/// Whether t is a vector of every batch item of x [B, N, C], or one for all.
bool is_item_vector(const at::Tensor& t, const at::Tensor& x) {
  return has_vector_type(t, x) && t.dim() == 2 && t.size(1) == x.size(2) &&
         (t.size(0) == x.size(0) || t.size(0) == 1);
}

kernels::RowStrides row_strides(const at::Tensor& t) {
  return {.batch = t.stride(0), .row = t.stride(1)};
}

kernels::HeadStrides head_strides(const at::Tensor& t) {
  return {.batch = t.stride(0), .token = t.stride(1), .head = t.stride(2)};
}

kernels::ItemVector item_vector(const at::Tensor& t) {
  return {.data = t.const_data_ptr(), .stride_batch = t.size(0) == 1 ? 0 : t.stride(0)};
}

/// Elements between the rows of t seen as [rows, last dimension]; none where there is no such view.
std::optional<int64_t> row_stride(const at::Tensor& t) {
  int64_t stride = 0, rows = 1;  // of the dimensions looked at so far
  for (int64_t dim = t.dim() - 2; dim >= 0; --dim) {
    if (t.size(dim) == 1) continue;
    if (rows == 1) {
      stride = t.stride(dim);
    } else if (t.stride(dim) != stride * rows) {
      return std::nullopt;
    }
    rows *= t.size(dim);
  }
  return stride;
}

at::Tensor empty_for(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

void check_out(const char* where, const at::Tensor& out, const at::Tensor& x) {
  if (out.sizes() == x.sizes() && out.scalar_type() == x.scalar_type()) return;
  fail<InputError>(where, "out must be as its input, ", x.scalar_type(), " ", x.sizes(), ": got ",
                   out.scalar_type(), " ", out.sizes());
}

/// Whether the kernel can rotate x [B, N, H, D] so.
bool can_rotate(const at::Tensor& x, const RotaryEmbedding& rotary) {
  const at::Tensor& freqs = rotary.freqs;
  return freqs.is_cpu() && freqs.scalar_type() == at::kComplexFloat && !freqs.is_conj() &&
         freqs.dim() == 2 && has_dense_rows(freqs) && freqs.size(0) == x.size(1) &&
         2 * freqs.size(1) == x.size(3);
}

kernels::HeadNormProblem rotation_problem(const at::Tensor& out, const at::Tensor& x,
                                          const RotaryEmbedding& rotary) {
  const at::Tensor& freqs = rotary.freqs;
  return {.type = *element_type_of(x),
          .batch = x.size(0),
          .tokens = x.size(1),
          .heads = x.size(2),
          .head_dim = x.size(3),
          .x = x.const_data_ptr(),
          .x_strides = head_strides(x),
          .out = out.mutable_data_ptr(),
          .out_strides = head_strides(out),
          .rotary = static_cast<const float*>(freqs.const_data_ptr()),
          .rotary_stride = 2 * freqs.stride(0)};
}

}  // namespace

void modulated_layer_norm_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps) {
  check_out("modulated_layer_norm", out, x);
  const bool fits = x.dim() == 3 && is_supported(x) && is_like(out, x) &&
                    is_item_vector(scale, x) && is_item_vector(shift, x) &&
                    scale.scalar_type() == shift.scalar_type();
  if (!fits) {
    out.copy_(reference::modulated_layer_norm(x, scale, shift, eps));
    return;
  }
  kernels::layer_norm({.type = *element_type_of(x),
                       .batch = x.size(0),
                       .rows = x.size(1),
                       .columns = x.size(2),
                       .x = x.const_data_ptr(),
                       .x_strides = row_strides(x),
                       .out = out.mutable_data_ptr(),
                       .out_strides = row_strides(out),
                       .vector_type = *element_type_of(scale),
                       .scale = item_vector(scale),
                       .shift = item_vector(shift),
                       .eps = static_cast<float>(eps)},
                      cpu_threads(), cpu_isa());
}

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& shift, double eps) {
  const at::Tensor out = empty_for(x);
  modulated_layer_norm_out(out, x, scale, shift, eps);
  return out;
}

void add_gated_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& gate,
                   const at::Tensor& y) {
  check_out("add_gated", out, x);
  const bool fits = x.dim() == 3 && is_supported(x) && is_like(y, x) && is_like(out, x) &&
                    is_item_vector(gate, x);
  if (!fits) {
    out.copy_(reference::add_gated(x, gate, y));
    return;
  }
  kernels::gated_residual({.type = *element_type_of(x),
                           .batch = x.size(0),
                           .rows = x.size(1),
                           .columns = x.size(2),
                           .x = y.const_data_ptr(),
                           .x_strides = row_strides(y),
                           .residual = x.const_data_ptr(),
                           .residual_strides = row_strides(x),
                           .out = out.mutable_data_ptr(),
                           .out_strides = row_strides(out),
                           .vector_type = *element_type_of(gate),
                           .gate = item_vector(gate)},
                          cpu_threads(), cpu_isa());
}

at::Tensor add_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  const at::Tensor out = empty_for(x);
  add_gated_out(out, x, gate, y);
  return out;
}

void norm_and_rotate_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                         double eps, const RotaryEmbedding& rotary) {
  check_out("norm_and_rotate", out, x);
  const bool fits = x.dim() == 4 && is_supported(x) && is_like(out, x) && can_rotate(x, rotary) &&
                    has_vector_type(weight, x) && weight.dim() == 1 && weight.size(0) == x.size(3);
  if (!fits) {
    out.copy_(reference::norm_and_rotate(x, weight, eps, rotary));
    return;
  }
  kernels::HeadNormProblem problem = rotation_problem(out, x, rotary);
  problem.weight = weight.const_data_ptr();
  problem.weight_type = *element_type_of(weight);
  problem.eps = static_cast<float>(eps);
  kernels::norm_and_rotate(problem, cpu_threads(), cpu_isa());
}

at::Tensor norm_and_rotate(const at::Tensor& x, const at::Tensor& weight, double eps,
                           const RotaryEmbedding& rotary) {
  const at::Tensor out = empty_for(x);
  norm_and_rotate_out(out, x, weight, eps, rotary);
  return out;
}

void norm_and_rotate_(at::Tensor heads, const at::Tensor& weight, double eps,
                      const RotaryEmbedding& rotary) {
  norm_and_rotate_out(heads, heads, weight, eps, rotary);
}

void apply_rotary_out(const at::Tensor& out, const at::Tensor& x, const RotaryEmbedding& rotary) {
  check_out("apply_rotary", out, x);
  if (x.dim() == 4 && is_supported(x) && is_like(out, x) && can_rotate(x, rotary)) {
    kernels::norm_and_rotate(rotation_problem(out, x, rotary), cpu_threads(), cpu_isa());
  } else {
    out.copy_(reference::apply_rotary(x, rotary));
  }
}

void activate_out(const at::Tensor& out, Activation activation, const at::Tensor& x) {
  check_out("activation", out, x);
  const std::optional<kernels::Activation> kernel = kernel_activation(activation);
  const std::optional<int64_t> x_stride = row_stride(x), out_stride = row_stride(out);
  if (!kernel || !is_supported(x) || !is_like(out, x) || !x_stride || !out_stride) {
    out.copy_(activate(activation, x));
    return;
  }
  if (x.numel() == 0) return;
  kernels::activate({.activation = *kernel,
                     .type = *element_type_of(x),
                     .rows = x.numel() / x.size(-1),
                     .columns = x.size(-1),
                     .x = x.const_data_ptr(),
                     .x_stride = *x_stride,
                     .out = out.mutable_data_ptr(),
                     .out_stride = *out_stride},
                    cpu_threads(), cpu_isa());
}

namespace reference {

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& shift, double eps) {
  const int64_t width = x.size(-1);
  const at::Tensor factor = scale + 1;
  const auto type = x.scalar_type();
  if (x.size(0) == 1 && scale.scalar_type() == type && shift.scalar_type() == type) {
    // With one conditioning vector, scale and shift are the affine part of the norm: one pass.
    return at::layer_norm(x, {width}, factor.select(0, 0), shift.select(0, 0), eps);
  }
  const at::Tensor normed = at::layer_norm(x, {width}, {}, {}, eps);
  return at::addcmul(shift.unsqueeze(1), normed, factor.unsqueeze(1)).to(type);
}

at::Tensor add_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  return at::addcmul(x, gate.unsqueeze(1), y).to(x.scalar_type());
}

at::Tensor norm_and_rotate(const at::Tensor& x, const at::Tensor& weight, double eps,
                           const RotaryEmbedding& rotary) {
  return reference::apply_rotary(at::rms_norm(x, weight.sizes(), weight, eps), rotary);
}

at::Tensor apply_rotary(const at::Tensor& x, const RotaryEmbedding& rotary) {
  const bool wide = x.scalar_type() == at::kDouble;
  const at::Tensor pairs = at::view_as_complex(
      x.to(wide ? at::kDouble : at::kFloat).unflatten(-1, {x.size(3) / 2, 2}).contiguous());
  const at::Tensor freqs = rotary.freqs.to(wide ? at::kComplexDouble : at::kComplexFloat);
  const at::Tensor rotated = pairs * freqs.unsqueeze(0).unsqueeze(2);
  return at::view_as_real(rotated).flatten(-2).to(x.scalar_type());
}

}  // namespace reference
}  // namespace cachedit::nn
