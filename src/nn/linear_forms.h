// The ways to hold a linear layer's weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "nn/linear.h"
#include "nn/linear_weight.h"

namespace cachedit::nn {

/// Plain tensors: ATen's linear and elementwise operators, on any device. `weight` [out, in],
/// `bias` [out] or undefined, both of the activations' type. Also the definition that the other
/// forms are tested against.
std::unique_ptr<LinearForm> make_aten_form(at::Tensor weight, at::Tensor bias);

/// Packed for the CPU's kernels, in the activations' type (fp32, bf16; fp16 computes in fp32).
/// Several weights one below the other. `bias` [out of all] or undefined.
std::unique_ptr<LinearForm> make_packed_form(const std::vector<LinearWeight>& weights,
                                             at::Tensor bias, at::ScalarType dtype);

/// Quantized for the CPU's kernels as `type` says: weights that are stored so are taken as they
/// are, others are quantized.
std::unique_ptr<LinearForm> make_quantized_form(const std::vector<LinearWeight>& weights,
                                                at::Tensor bias, QuantType type,
                                                int64_t group_size);

/// Whether the CPU's kernels compute with activations of this type.
bool has_packed_form(at::Device device, at::ScalarType dtype);

/// Activations [..., in] as a float8 W8A8 `type` rounds them, in their own dtype: to e4m3 with a
/// scale of amax / 448 per row, tensor, or 128 of a row's features; rows of zeros stay zeros. In 16
/// bits the scaled values are rounded once more.
at::Tensor rounded_to_float8(const at::Tensor& x, QuantType type);

/// What a call does besides the product, for a `y` [B, N, out] that is the product: writes
/// call.out.
void finish_call(const at::Tensor& y, const LinearCall& call);

}  // namespace cachedit::nn
