// A linear layer's weight as it lies in a checkpoint: floating-point numbers, or quantized values
// with their scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "nn/quantization.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

struct LinearWeight {
  /// [out, in] of a floating-point type, int8 or float8_e4m3fn; or uint8 [out, in / 2], two int4 in
  /// a byte, the lower one first. A view of the file where it can be.
  at::Tensor values;
  /// fp32, undefined for unscaled values: [1], [out], [out, groups] (int4), or [out / 128, in /
  /// 128], rounded up (e4m3).
  at::Tensor scales;
  /// How the values were quantized; none: they are plain numbers, or float8 without a scale (then
  /// kFloat8WeightOnly with a scale of one).
  std::optional<QuantType> stored;

  bool quantized() const { return stored.has_value(); }
};

/// Takes "weight" [out, in] of `scope` and, where it is int8 or float8, its scales under any of the
/// names in use ("weight_scale", "scale_weight", "weight_scale_inv"...). Floating-point values keep
/// their stored type. This rank's share only, by `rule`. Faults are recorded in the scope, as its
/// take() does.
LinearWeight take_linear_weight(const WeightScope& scope, int64_t out_features, int64_t in_features,
                                const ShardRule* rule);

/// The values as numbers of `dtype`: what the quantized weight stands for.
at::Tensor dequantized(const LinearWeight& weight, at::ScalarType dtype);

}  // namespace cachedit::nn
