// The operators between linear layers and attention: the CPU kernels where tensors are on the CPU,
// in float32, bfloat16 or float16 and with a dense last dimension; their definitions by ATen else.
//
// The kernels compute in fp32. An `out` has the shape and type of x, any strides, and may be an
// input itself; it overlaps none otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/activation.h"
#include "nn/rotary.h"

namespace cachedit::nn {

/// layer_norm(x) * (1 + scale) + shift over the last dimension of x [B, N, C]; scale and shift
/// [B, C] in x's type or float32.
at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& shift, double eps = 1e-6);
void modulated_layer_norm_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps = 1e-6);

/// x + gate * y; x, y [B, N, C], gate [B, C] in x's type or float32.
at::Tensor add_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);
void add_gated_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& gate,
                   const at::Tensor& y);

/// RMS norm of every head of x [B, N, H, D] with weight [D], rounded to x's type, then its
/// rotation. x may be a slice of a fused projection's output.
at::Tensor norm_and_rotate(const at::Tensor& x, const at::Tensor& weight, double eps,
                           const RotaryEmbedding& rotary);
void norm_and_rotate_out(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                         double eps, const RotaryEmbedding& rotary);
/// In place, named as ATen names such functions.
// NOLINTNEXTLINE(readability-identifier-naming)
void norm_and_rotate_(at::Tensor heads, const at::Tensor& weight, double eps,
                      const RotaryEmbedding& rotary);

/// apply_rotary() of rotary.h into `out`.
void apply_rotary_out(const at::Tensor& out, const at::Tensor& x, const RotaryEmbedding& rotary);

/// activate() of activation.h into `out`, for x of any shape.
void activate_out(const at::Tensor& out, Activation activation, const at::Tensor& x);

/// The definitions: what tests compare with, and what runs where there is no kernel. In float64
/// they compute in float64.
namespace reference {

at::Tensor modulated_layer_norm(const at::Tensor& x, const at::Tensor& scale,
                                const at::Tensor& shift, double eps = 1e-6);
at::Tensor add_gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y);
at::Tensor norm_and_rotate(const at::Tensor& x, const at::Tensor& weight, double eps,
                           const RotaryEmbedding& rotary);
at::Tensor apply_rotary(const at::Tensor& x, const RotaryEmbedding& rotary);

}  // namespace reference
}  // namespace cachedit::nn
