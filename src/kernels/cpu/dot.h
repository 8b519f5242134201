// Register-blocked products of a few rows with a packed panel, for each pair of number formats.
// Operands are streams of 32-bit units that hold 1, 2 or 4 consecutive elements of the contracted
// dimension, so one loop serves all formats.
#pragma once

#include "kernels/cpu/simd.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Rows of a register block.
inline constexpr int kRows = 6;
/// Vectors of a register block's row: 24 accumulators of 32 registers, or 12 of 16.
inline constexpr int kVecs = kLanes == 16 ? 4 : 2;
/// Columns (keys of QK, channels of PV) of a packed panel.
inline constexpr int kPanel = kVecs * kLanes;

struct DotF32 {
  using Acc = F32;
  using Element = float;
  static constexpr int kPack = 1;  ///< elements in a unit
  static CACHEDIT_INLINE F32 step(F32 acc, I32 a, I32 b) {
    return fma(from_bits(a), from_bits(b), acc);
  }
};

/// bf16 pairs, products summed in fp32.
struct DotBF16 {
  using Acc = F32;
  using Element = uint16_t;
  static constexpr int kPack = 2;
  static CACHEDIT_INLINE F32 step(F32 acc, I32 a, I32 b) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh&>(a), reinterpret_cast<__m512bh&>(b));
#else
    // Two fp32 products; levels without the instruction store fp32 (DotWide) instead of using this.
    const F32 low = fma(from_bits(a << 16), from_bits(b << 16), acc);
    return fma(from_bits(a & static_cast<int32_t>(0xffff0000)),
               from_bits(b & static_cast<int32_t>(0xffff0000)), low);
#endif
  }
};

#if defined(__AVX512BF16__)
using DotWide = DotBF16;
#else
/// What holds bf16 and the e4m3 and NVFP4 values, all of which bf16 represents exactly.
using DotWide = DotF32;
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// a: four values 0..255, b: four values -128..127; summed in int32.
struct DotInt8 {
  using Acc = I32;
  using ElementA = uint8_t;
  using Element = int8_t;
  static constexpr int kPack = 4;
  static CACHEDIT_INLINE I32 step(I32 acc, I32 a, I32 b) {
#if defined(__AVX512VNNI__)
    return reinterpret_cast<I32>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc),
                                                     reinterpret_cast<__m512i>(a),
                                                     reinterpret_cast<__m512i>(b)));
#else
    return reinterpret_cast<I32>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(acc),
                                                         reinterpret_cast<__m256i>(a),
                                                         reinterpret_cast<__m256i>(b)));
#endif
  }
};
#else
/// The same numbers widened to 16 bits: exact where an 8-bit multiply-add would saturate.
struct DotInt8 {
  using Acc = I32;
  using ElementA = int16_t;
  using Element = int16_t;
  static constexpr int kPack = 2;
#if defined(__SSE2__)
  static CACHEDIT_INLINE I32 multiply_pairs(I32 a, I32 b) {
#if defined(__AVX512BW__)
    return reinterpret_cast<I32>(
        _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
    return reinterpret_cast<I32>(
        _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
    return reinterpret_cast<I32>(
        _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
  }
  /// Integer sums may be reordered, and GCC then keeps the products of several steps in memory.
  static CACHEDIT_INLINE I32 add_in_order(I32 acc, I32 product) {
    I32 sum = acc + product;
#if defined(__AVX512F__)
    asm("" : "+v"(sum));
#else
    asm("" : "+x"(sum));
#endif
    return sum;
  }
#endif
  static CACHEDIT_INLINE I32 step(I32 acc, I32 a, I32 b) {
#if defined(__SSE2__)
    return add_in_order(acc, multiply_pairs(a, b));
#else
    return acc + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
  }
};
#endif

template <class Dot, int vecs>
struct Tile {
  typename Dot::Acc at[kRows][vecs];
};

/// tile += a[kRows][steps] * panel[steps][vecs * kLanes], all in 32-bit units.
template <class Dot, int vecs>
CACHEDIT_INLINE void multiply(Tile<Dot, vecs>& tile, const int32_t* a, int64_t a_stride,
                              const int32_t* panel, int64_t steps) {
#pragma GCC unroll 2
  for (int64_t k = 0; k < steps; ++k) {
    I32 b[vecs];
#pragma GCC unroll 4
    for (int v = 0; v < vecs; ++v) b[v] = load(panel + (k * vecs + v) * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const I32 x = splat(a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < vecs; ++v) tile.at[r][v] = Dot::step(tile.at[r][v], x, b[v]);
    }
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
