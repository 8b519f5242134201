// How fast this machine computes, for predictions: rates of the operations that a step consists of.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "attention/attention.h"
#include "nn/quantization.h"

namespace cachedit::pipelines {

struct MachineRates {
  double gemm_flops = 0;
  double attention_flops = 0;
  double memory_bandwidth = 0;  ///< bytes a second of element-wise operations
};

/// A transformer, as far as rates depend on it.
struct RatedWork {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t tokens = 0;
  at::ScalarType dtype = at::kFloat;
  std::optional<nn::QuantType> type = std::nullopt;  ///< of its linear layers
  int64_t group_size = 64;
};

/// Measured on the CPU in about a second, with the threads at hand (long sequences on a part of
/// them): linear layers as such a model has them, and `attention`.
MachineRates measure_rates(const RatedWork& work, const attention::Attention& attention);

}  // namespace cachedit::pipelines
