// The register block of the GEMM: up to kRows rows of A times one panel of W, over a range of K.
#pragma once

#include "kernels/cpu/gemm_formats.h"

namespace cachedit::kernels::CACHEDIT_ISA {

template <bool integer>
struct SumType {
  using Type = float;
};
template <>
struct SumType<true> {
  using Type = int32_t;
};
/// Of a lane of Dot's accumulators.
template <class Dot>
using Sum = typename SumType<__is_same(Dot, DotInt8)>::Type;

/// One call of the register block. The stride of A is in bytes, the other in elements.
template <class Dot>
struct BlockCall {
  const char* a;  ///< units of the first row
  int64_t a_stride;
  const char* panel;  ///< words of kPanel columns
  int64_t steps;      ///< units along K; whole words, but for the last ones of a format of 1 step
  const Sum<Dot>* from;  ///< what the sums start with: [rows][kPanel] or, with stride 0, one row
  int64_t from_stride;
  Sum<Dot>* to;       ///< [rows][kPanel], the sums; may be `from`
  const char* ahead;  ///< memory that is wanted soon: a line of it is asked for every 4 steps
};

using Unit = int32_t __attribute__((aligned(1), may_alias));

template <class Format, int rows>
CACHEDIT_INLINE void multiply_word(typename Format::Dot::Acc (&tile)[rows][kVecs], const char* a,
                                   int64_t a_stride, const char* word) {
  using Dot = typename Format::Dot;
#pragma GCC unroll 8
  for (int s = 0; s < Format::kSteps; ++s) {
    I32 b[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      b[v] = Format::decode(word + v * kLanes * Format::kWordBytes, s);
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
      const I32 x = splat(*reinterpret_cast<const Unit*>(a + r * a_stride + s * 4));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) tile[r][v] = Dot::step(tile[r][v], x, b[v]);
    }
  }
}

template <class Format, int rows>
__attribute__((noinline)) void multiply_rows(const BlockCall<typename Format::Dot>& call) {
  using Acc = typename Format::Dot::Acc;
  constexpr int64_t kBytes = kPanel * Format::kWordBytes;
  constexpr int kUnroll = Format::kSteps == 1 ? 4 : 1;
  Acc tile[rows][kVecs];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      tile[r][v] = load(call.from + r * call.from_stride + v * kLanes);
  }
  const int64_t a_stride = call.a_stride;
  const char* a = call.a;
  const char* word = call.panel;
  const char* ahead = call.ahead;
  int64_t words = call.steps / Format::kSteps;
  for (; words >= kUnroll; words -= kUnroll) {
    __builtin_prefetch(ahead, 0, 2);
    ahead += 64;
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      multiply_word<Format, rows>(tile, a + u * Format::kSteps * 4, a_stride, word + u * kBytes);
    }
    a += kUnroll * Format::kSteps * 4;
    word += kUnroll * kBytes;
  }
  for (; words > 0; --words) {
    multiply_word<Format, rows>(tile, a, a_stride, word);
    a += Format::kSteps * 4;
    word += kBytes;
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) store(call.to + r * kPanel + v * kLanes, tile[r][v]);
  }
}

/// Scales of groups along K: of each group kPanel numbers, one behind the other.
struct GroupScales {
  const void* data;
  ElementType type;
  int64_t first;  ///< elements before those of the call's first group
  int64_t words;  ///< of a group; the call's last one may have fewer
};

/// The same, the sums of every group entering the others times their scale.
template <class Format, int rows>
__attribute__((noinline)) void multiply_groups_of_rows(const BlockCall<typename Format::Dot>& call,
                                                       const GroupScales& groups) {
  using Acc = typename Format::Dot::Acc;
  constexpr int64_t kBytes = kPanel * Format::kWordBytes;
  /// Few rows: W comes from memory, and a panel is too short a stream for the hardware to learn.
  constexpr int64_t kAheadBytes = 4096;
  F32 total[rows][kVecs];
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v)
      total[r][v] = load(call.from + r * call.from_stride + v * kLanes);
  }
  const char* a = call.a;
  const char* word = call.panel;
  int64_t scale = groups.first;
  for (int64_t left = call.steps / Format::kSteps; left > 0; left -= groups.words) {
    Acc tile[rows][kVecs] = {};
    const int64_t words = left < groups.words ? left : groups.words;
    for (int64_t w = 0; w < words; ++w) {
#pragma GCC unroll 4
      for (int64_t line = 0; line < kBytes; line += 64) {
        __builtin_prefetch(word + kAheadBytes + line, 0, 2);
      }
      multiply_word<Format, rows>(tile, a, call.a_stride, word);
      a += Format::kSteps * 4;
      word += kBytes;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const F32 factor = load_as_float(groups.data, groups.type, scale + v * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) total[r][v] = fma(tile[r][v], factor, total[r][v]);
    }
    scale += kPanel;
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) store(call.to + r * kPanel + v * kLanes, total[r][v]);
  }
}

/// 1 to kRows rows.
template <class Format>
inline void multiply_groups(int64_t rows, const BlockCall<typename Format::Dot>& call,
                            const GroupScales& groups) {
  switch (rows) {
    case 1:
      return multiply_groups_of_rows<Format, 1>(call, groups);
    case 2:
      return multiply_groups_of_rows<Format, 2>(call, groups);
    case 3:
      return multiply_groups_of_rows<Format, 3>(call, groups);
    case 4:
      return multiply_groups_of_rows<Format, 4>(call, groups);
    case 5:
      return multiply_groups_of_rows<Format, 5>(call, groups);
    default:
      return multiply_groups_of_rows<Format, kRows>(call, groups);
  }
}

/// 1 to kRows rows.
template <class Format>
inline void multiply_block(int64_t rows, const BlockCall<typename Format::Dot>& call) {
  switch (rows) {
    case 1:
      return multiply_rows<Format, 1>(call);
    case 2:
      return multiply_rows<Format, 2>(call);
    case 3:
      return multiply_rows<Format, 3>(call);
    case 4:
      return multiply_rows<Format, 4>(call);
    case 5:
      return multiply_rows<Format, 5>(call);
    default:
      return multiply_rows<Format, kRows>(call);
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
