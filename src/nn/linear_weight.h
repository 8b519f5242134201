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
  /// [out, in] of fp32, bf16, fp16, int8 or float8_e4m3fn, rows without gaps; or uint8 [out,
  /// in / 2], two int4 in a byte, the lower one first. A view of the file where it can be.
  at::Tensor values;
  /// fp32, undefined for unscaled values: [1], [out], [out, groups] (int4), or [out / 128, in /
  /// 128], rounded up (e4m3).
  at::Tensor scales;
  /// How the values were quantized; none: they are plain numbers. Float8 without a scale counts as
  /// kFloat8WeightOnly with a scale of one.
  std::optional<QuantType> stored;
  /// All of the tensor in the file, whose pages may go once the values were copied.
  at::Tensor file;
  /// The file's values and scales, of this rank's share.
  int64_t stored_bytes = 0;
  /// The file holds quantized values whose scales do not end where this rank's share does: `values`
  /// are what they stand for.
  bool unpacked = false;

  bool quantized() const { return stored.has_value(); }
  /// Of this rank.
  int64_t inputs() const { return values.size(1) * (values.scalar_type() == at::kByte ? 2 : 1); }
};

/// Takes "weight" [out, in] of `scope` and, where it is int8, int4 or float8, its scales under any
/// of the names in use ("weight_scale", "scale_weight", "weight_scale_inv"...). Floating-point
/// values keep their stored type. This rank's share only, by `rule`. A missing or wrong-shaped
/// weight is recorded in the scope and comes back on the meta device, as from its take(). Throws
/// WeightError for scales that do not fit, are negative or not finite; UnsupportedError for element
/// types that have no kernels; and as check_comfy_quant() does.
LinearWeight take_linear_weight(const WeightScope& scope, int64_t out_features, int64_t in_features,
                                const ShardRule* rule);

/// Whether every rank's share of a dimension of `size` ends between scales of `per_scale` entries.
bool share_ends_between_scales(int64_t size, int64_t per_scale, const ShardRule& rule,
                               int64_t ranks);

/// The values as numbers of `dtype`: what the quantized weight stands for.
at::Tensor dequantized(const LinearWeight& weight, at::ScalarType dtype);

}  // namespace cachedit::nn
