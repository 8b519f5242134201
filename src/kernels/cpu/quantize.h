// Scales of groups of fp32 rows, and rows written in the number format of a product.
#pragma once

#include "kernels/cpu/attention_scheme.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Largest magnitude of `count` consecutive elements; NaN if one is NaN or infinite, so that a
/// quantized row cannot turn them into ordinary numbers.
inline float largest_magnitude(const float* in, int64_t count) {
  F32 largest{};
  F32 poison{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32 v = load(in + i);
    largest = max(largest, abs(v));
    poison = fma(v, F32{}, poison);
  }
  return reduce_max(largest) + reduce_add(poison);
}

/// One scale per token or per `group` of `count` rows [.., depth], written per row.
template <class Scheme>
inline void choose_scales(const float* rows, int64_t count, int64_t depth, int64_t group,
                          float* scales) {
  constexpr float kMax = kIntegerKeys<Scheme> ? 127.0f : kMaxE4M3 * kMaxE2M1;
  for (int64_t first = 0; first < count; first += group) {
    const int64_t n = count - first < group ? count - first : group;
    const float scale = scale_of(largest_magnitude(rows + first * depth, n * depth), kMax);
    for (int64_t t = 0; t < n; ++t) scales[first + t] = scale;
  }
}

/// -127..127 for finite scales.
CACHEDIT_INLINE I32 to_int8(const float* in, F32 inverse_scale) {
  return round_to_int(load(in) * inverse_scale);
}

/// A row [depth] as INT8 in the elements of `units`; returns their sum.
inline int32_t encode_int8_key(const float* row, int64_t depth, float scale, int32_t* units) {
  const F32 inverse = splat(1.0f / scale);
  auto* elements = reinterpret_cast<DotInt8::Element*>(units);
  I32 sum{};
  for (int64_t i = 0; i < depth; i += kLanes) {
    const I32 q = to_int8(row + i, inverse);
    sum += q;
    store_low(elements + i, q);
  }
  int32_t total = 0;
  for (int l = 0; l < kLanes; ++l) total += sum[l];
  return total;
}

/// The same shifted to 1..255, as the unsigned operand of the product.
inline void encode_int8_query(const float* row, int64_t depth, float scale, int32_t* units) {
  const F32 inverse = splat(1.0f / scale);
  auto* elements = reinterpret_cast<DotInt8::ElementA*>(units);
  for (int64_t i = 0; i < depth; i += kLanes) {
    store_low(elements + i, to_int8(row + i, inverse) + 128);
  }
}

/// A row [depth] as floating-point elements, rounded to NVFP4 times `scale` if the scheme says so
/// (the stored values leave the scale out).
template <class Scheme>
inline void encode_float(float* row, int64_t depth, float scale, int32_t* units) {
  if constexpr (Scheme::kWeights == Weights::kFp4) {
    constexpr int kVectors = kFp4Group / kLanes;
    for (int64_t i = 0; i < depth; i += kFp4Group) {
      F32 v[kVectors];
      for (int k = 0; k < kVectors; ++k) v[k] = load(row + i + k * kLanes) / splat(scale);
      const F32 group_scale = splat(round_nvfp4_group(v));
      for (int k = 0; k < kVectors; ++k) store(row + i + k * kLanes, v[k] * group_scale);
    }
  }
  auto* elements = reinterpret_cast<typename Scheme::QK::Element*>(units);
  for (int64_t i = 0; i < depth; i += kLanes) store_elements(elements + i, load(row + i));
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
