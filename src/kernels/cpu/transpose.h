// Transposes a square of 32-bit lanes in registers.
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

}  // namespace cachedit::kernels::CACHEDIT_ISA
