// How fast this machine computes, for predictions: rates of the operations that a step consists of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/attention.h"

namespace cachedit::pipelines {

struct MachineRates {
  double gemm_flops = 0;
  double attention_flops = 0;
  double memory_bandwidth = 0;  ///< bytes a second of element-wise operations
};

/// Measured on the CPU in about a second, with the threads at hand, at a transformer's width and
/// number of tokens (long sequences on a part of them): unquantized linear layers as a model loaded
/// in `dtype` has them, and `attention`.
MachineRates measure_rates(int64_t heads, int64_t head_dim, int64_t tokens, at::ScalarType dtype,
                           const attention::Attention& attention);

}  // namespace cachedit::pipelines
