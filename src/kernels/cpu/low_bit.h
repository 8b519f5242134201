// Rounding to e4m3, e2m1 and NVFP4 groups, with results kept in fp32 (see number_formats.h).
#pragma once

#include "kernels/cpu/simd.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Largest numbers of the formats.
inline constexpr float kMaxE4M3 = 448.0f;
inline constexpr float kMaxE2M1 = 6.0f;
/// Elements that share a scale in NVFP4.
inline constexpr int kFp4Group = 16;

/// Scale of a group whose largest magnitude is `largest`; 1 for all zeros, so that it can divide.
CACHEDIT_INLINE float scale_of(float largest, float format_max) {
  return largest < 1e-30f ? 1.0f : largest / format_max;
}

/// Nearest e4m3 number of 0 <= v <= 448, ties to even; NaN stays NaN.
CACHEDIT_INLINE F32 round_e4m3_magnitude(F32 v) {
  const I32 u = bits(v);
  const I32 keep = splat(static_cast<int32_t>(0xfff00000));  // sign, exponent, 3 bits of mantissa
  const F32 normal = from_bits((u + 0x7ffff + ((u >> 20) & 1)) & keep);
  // Below 2^-6 the spacing is 2^-9, which is that of fp32 numbers from 2^14.
  const F32 subnormal = (v + 16384.0f) - 16384.0f;
  return select(v < 0.015625f, subnormal, normal);
}

CACHEDIT_INLINE F32 round_e4m3(F32 v) {
  const I32 sign = bits(v) & static_cast<int32_t>(0x80000000);
  const F32 magnitude = min(splat(kMaxE4M3), abs(v));  // keeps NaN: it is the second operand
  const F32 rounded = from_bits(bits(round_e4m3_magnitude(magnitude)) | sign);
  return select(v != v, v, rounded);  // rounding the bits of a NaN may give another number
}

/// Nearest e2m1 number, ties to even, saturating at 6.
CACHEDIT_INLINE F32 round_e2m1(F32 v) {
  const I32 sign = bits(v) & static_cast<int32_t>(0x80000000);
  const F32 m = min(splat(kMaxE2M1), abs(v));
  // Spacing 1/2 below 2, 1 below 4, 2 above: that of fp32 numbers from 2^22, 2^23, 2^24.
  const F32 shift =
      select(m < 2.0f, splat(4194304.0f), select(m < 4.0f, splat(8388608.0f), splat(16777216.0f)));
  return from_bits(bits((m + shift) - shift) | sign);
}

/// Values and scale of one group of 16 (16 / kLanes vectors), in place; returns the scale.
CACHEDIT_INLINE float round_nvfp4_group(F32 (&v)[kFp4Group / kLanes]) {
  F32 largest = abs(v[0]);
#pragma GCC unroll 4
  for (int i = 1; i < kFp4Group / kLanes; ++i) largest = max(abs(v[i]), largest);
  const F32 scale = round_e4m3(splat(reduce_max(largest) / kMaxE2M1));
  const I32 usable = scale != F32{};
#pragma GCC unroll 4
  for (int i = 0; i < kFp4Group / kLanes; ++i) {
    v[i] = from_bits(usable & bits(round_e2m1(v[i] / scale)));
  }
  return scale[0];
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
