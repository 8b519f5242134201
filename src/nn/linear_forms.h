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
/// are, others are quantized. All of them are, or none, with scales that cover the same.
std::unique_ptr<LinearForm> make_quantized_form(const std::vector<LinearWeight>& weights,
                                                at::Tensor bias, QuantType type,
                                                int64_t group_size);

/// Several forms of one input as one, their outputs one after the other: where layers that are
/// fused differ in type. `outputs` of each.
std::unique_ptr<LinearForm> make_joined_form(std::vector<std::unique_ptr<LinearForm>> forms,
                                             std::vector<int64_t> outputs);

/// Whether the CPU's kernels compute with activations of this type.
bool has_packed_form(at::Device device, at::ScalarType dtype);

/// Activations [B, N, in] as a float8 W8A8 `type` rounds them, in their own dtype: to e4m3 with a
/// scale of amax / 448 per row, batch item, or 128 of a row's features; rows of zeros stay zeros.
/// In 16 bits the scaled values are rounded once more. `second` [B, N, rest], defined or not:
/// further features of the rows. `largest` [B, N]: in place of the amax of each row (or item), as
/// LinearForm::run_share() has it.
at::Tensor rounded_to_float8(const at::Tensor& x, const at::Tensor& second, QuantType type,
                             const at::Tensor& largest = {});

namespace reference {
/// The definition by ATen's operators, on any device: what the kernel is tested against.
at::Tensor rounded_to_float8(const at::Tensor& x, QuantType type, const at::Tensor& largest = {});
}  // namespace reference

/// What a call does besides the product, for a `y` [B, N, out] that is the product: writes
/// call.out.
void finish_call(const at::Tensor& y, const LinearCall& call);

}  // namespace cachedit::nn
