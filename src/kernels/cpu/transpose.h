// Transposes 32-bit units: a square of lanes in registers, and rows into the lanes of a panel.
#pragma once

#include "kernels/cpu/simd.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Lane l of `low` comes from a where bit `distance` of l is clear, else from b moved up; `high`
/// is the other half. One stage of a butterfly transpose.
template <int distance>
CACHEDIT_INLINE void exchange(I32& a, I32& b) {
  I32 low{};
  I32 high{};
  for (int l = 0; l < kLanes; ++l) {
    low[l] = (l & distance) == 0 ? l : kLanes + l - distance;
    high[l] = (l & distance) == 0 ? l + distance : kLanes + l;
  }
  const I32 first = __builtin_shuffle(a, b, low);
  b = __builtin_shuffle(a, b, high);
  a = first;
}

template <int distance>
CACHEDIT_INLINE void exchange_rows(I32 (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & distance) == 0) exchange<distance>(rows[i], rows[i + distance]);
  }
}

/// rows[i][j] becomes rows[j][i].
CACHEDIT_INLINE void transpose(I32 (&rows)[kLanes]) {
  exchange_rows<1>(rows);
  exchange_rows<2>(rows);
  if constexpr (kLanes > 4) exchange_rows<4>(rows);
  if constexpr (kLanes > 8) exchange_rows<8>(rows);
}

/// Writes unit k of kLanes rows, rows[i] of `steps` units each (readable to a whole vector), to
/// lanes[k * stride .. + kLanes).
inline void transpose_into_panel(const int32_t* const (&rows)[kLanes], int64_t steps,
                                 int32_t* lanes, int64_t stride) {
  for (int64_t k = 0; k < steps; k += kLanes) {
    I32 square[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) square[i] = load(rows[i] + k);
    transpose(square);
    const int64_t count = steps - k < kLanes ? steps - k : int64_t{kLanes};
    for (int64_t i = 0; i < count; ++i) store(lanes + (k + i) * stride, square[i]);
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
