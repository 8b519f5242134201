// Weights of linear layers brought into a quantized type, as a checkpoint stores them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "kernels/gemm.h"
#include "nn/linear_weight.h"
#include "nn/quantization.h"

namespace cachedit::nn {

/// How the CPU's kernels compute with a type.
struct QuantRecipe {
  kernels::WeightForm form;
  kernels::WeightScale scale;
  kernels::ActivationScale activation = kernels::ActivationScale::kPerRow;
};

QuantRecipe recipe_of(QuantType type);

kernels::WeightSource source_of(const LinearWeight& weight);

/// Throws WeightError naming `where` if there is NaN or infinity among weights that are to be
/// quantized: their scale would make NaN or zero of all others that share it.
void check_finite(const at::Tensor& weights, std::string_view where);

/// `plain`, whose values are floating-point numbers on the CPU, with the values and scales that the
/// type gives. The very numbers that the kernels multiply with when they quantize at load.
LinearWeight quantized(const LinearWeight& plain, QuantType type, int64_t group_size);

}  // namespace cachedit::nn
