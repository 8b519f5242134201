// What a linear layer's weight becomes at load: as stored, or which quantized type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "nn/linear_weight.h"
#include "nn/quantization.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

struct ChosenWeight {
  /// Quantized where the file holds it so, or where the scales of a share are those of the whole.
  LinearWeight weight;
  std::optional<QuantType> type;  ///< none: plain numbers
  std::string note;               ///< for QuantizedLayer
};

/// Takes the weight of `scope`'s layer as take_linear_weight() does, and decides by the scope's
/// plan. Shares get the scales that the whole weight has: a rank quantizes all of a weight and
/// takes its part where a scale covers more than that. Types whose scales cover 128 or a group of
/// inputs need shares that end between scales; with the plan's per_tensor_fallback others become
/// float8_per_tensor for W8A8, float8_weight_only and int8_weight_only for the rest.
ChosenWeight choose_weight(const WeightScope& scope, int64_t out_features, int64_t in_features,
                           const ShardRule* rule, at::ScalarType dtype);

}  // namespace cachedit::nn
