// How each form of weights lies in a panel, and how its vectors become the 32-bit units that the
// products of dot.h read.
#pragma once

#include "kernels/cpu/convert.h"
#include "kernels/cpu/dot.h"
#include "kernels/packed_weight.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// A format is stored in words of kWordBytes per column; a word holds kSteps units, one for each of
/// as many consecutive steps along K. decode() gives the units of kLanes columns, whose words start
/// at p, for step `step` of the word.
template <class DotType>
struct PlainFormat {
  using Dot = DotType;
  static constexpr int kSteps = 1;
  static constexpr int kWordBytes = 4;
  static CACHEDIT_INLINE I32 decode(const char* p, int) {
    return load(reinterpret_cast<const int32_t*>(p));
  }
};

/// kLanes bytes as integers.
CACHEDIT_INLINE I32 load_signed_bytes(const char* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<I32>(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return reinterpret_cast<I32>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__SSE2__)
  const __m128i bytes = _mm_loadu_si32(p);
  const __m128i pairs = _mm_unpacklo_epi8(bytes, bytes);
  return reinterpret_cast<I32>(_mm_unpacklo_epi16(pairs, pairs)) >> 24;
#else
  I32 v{};
  for (int l = 0; l < kLanes; ++l) v[l] = static_cast<signed char>(p[l]);
  return v;
#endif
}

/// bf16 for levels that multiply in fp32.
struct WideBF16Format {
  using Dot = DotF32;
  static constexpr int kSteps = 1;
  static constexpr int kWordBytes = 2;
  static CACHEDIT_INLINE I32 decode(const char* p, int) {
    return bits(load_bf16(reinterpret_cast<const uint16_t*>(p)));
  }
};

/// int8 for levels whose integer product takes pairs of 16 bits.
struct WideInt8Format {
  using Dot = DotInt8;
  static constexpr int kSteps = 1;
  static constexpr int kWordBytes = 2;
  static CACHEDIT_INLINE I32 decode(const char* p, int) {
#if defined(__AVX512BW__)
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return reinterpret_cast<I32>(_mm512_cvtepi8_epi16(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return reinterpret_cast<I32>(_mm256_cvtepi8_epi16(bytes));
#else
    typedef uint16_t Pairs __attribute__((vector_size(kLanes * 2), may_alias, aligned(1)));
    const I32 both = __builtin_convertvector(*reinterpret_cast<const Pairs*>(p), I32);
    return (((both << 24) >> 24) & 0xffff) |
           (((both << 16) >> 8) & static_cast<int32_t>(0xffff0000));
#endif
  }
};

#if defined(__AVX512BF16__)
/// Two vectors of values as units: those of kLanes / 2 columns each.
CACHEDIT_INLINE I32 bf16_pairs(F32 first, F32 second) {
  return reinterpret_cast<I32>(_mm512_cvtne2ps_pbh(second, first));
}
#endif

struct Int8Format {
  using Dot = DotWide;
  static constexpr int kSteps = 1;
  static constexpr int kWordBytes = Dot::kPack;
  static CACHEDIT_INLINE I32 decode(const char* p, int) {
#if defined(__AVX512BF16__)
    return bf16_pairs(to_float(load_signed_bytes(p)), to_float(load_signed_bytes(p + kLanes)));
#else
    return bits(to_float(load_signed_bytes(p)));
#endif
  }
};

/// NaN codes decode to other numbers: packing sees to it that their scale is NaN.
struct E4M3Format {
  using Dot = DotWide;
  static constexpr int kSteps = 1;
  static constexpr int kWordBytes = Dot::kPack;
  static CACHEDIT_INLINE I32 decode(const char* p, int) {
#if defined(__AVX512BF16__)
    // In 16-bit lanes: four bits more of mantissa and another exponent bias; the codes below 8 are
    // multiples of 2^-9, of which there is a table.
    const __m512i code =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(code, 4),
                                             _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    const __m512i normal = _mm512_add_epi16(shifted, _mm512_set1_epi16(0x3c00));
    const __mmask32 subnormal = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, subnormal, code, table);
    constexpr int kFirstOrBothOthers = 0xf8;
    return reinterpret_cast<I32>(
        _mm512_ternarylogic_epi64(value, shifted, sign, kFirstOrBothOthers));
#elif defined(__F16C__)
    // The bits of an fp16 number that is 256 times smaller; the conversion takes subnormals.
#if defined(__AVX512F__)
    const __m256i code = _mm256_slli_epi16(
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 8);
    const F32 value = _mm512_cvtph_ps(_mm256_and_si256(
        _mm256_srai_epi16(code, 1), _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
#else
    const __m128i code =
        _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 8);
    const F32 value = _mm256_cvtph_ps(
        _mm_and_si128(_mm_srai_epi16(code, 1), _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
#endif
    return bits(value * 256.0f);
#else
    const I32 code = load_signed_bytes(p);
    const I32 magnitude = (code & 0x7f) << 20;
    // Subnormals are read as 1.m 2^-6 and lose the 1: no fp32 subnormals, which a CPU may flush.
    const I32 subnormal = magnitude < (1 << 23);
    const I32 biased = magnitude + ((120 << 23) + (subnormal & (1 << 23)));
    const F32 value = from_bits(biased) - from_bits(subnormal & bits(splat(0.015625f)));
    return bits(value) | ((code & 0x80) << 24);
#endif
  }
};

/// Words of 8 values: element k of a word is at bits 4 k, or for pairs of bf16 at bits 4 (k / 2) of
/// half k % 2.
struct Int4Format {
  using Dot = DotWide;
  static constexpr int kSteps = 8 / Dot::kPack;
  static constexpr int kWordBytes = 4;
  static constexpr int shift_of(int k) { return 4 * (k / Dot::kPack) + 16 * (k % Dot::kPack); }
  static CACHEDIT_INLINE I32 decode(const char* p, int step) {
    const I32 word = load(reinterpret_cast<const int32_t*>(p));
#if defined(__AVX512BF16__)
    // bf16 of 0..7, -8..-1, twice: the lookup reads a fifth bit.
    const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi16(
        0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, static_cast<int16_t>(0xc100),
        static_cast<int16_t>(0xc0e0), static_cast<int16_t>(0xc0c0), static_cast<int16_t>(0xc0a0),
        static_cast<int16_t>(0xc080), static_cast<int16_t>(0xc040), static_cast<int16_t>(0xc000),
        static_cast<int16_t>(0xbf80)));
    const __m512i index =
        _mm512_srli_epi16(reinterpret_cast<__m512i>(word), static_cast<unsigned>(4 * step));
    return reinterpret_cast<I32>(_mm512_permutexvar_epi16(index, table));
#else
    return bits(to_float((word << (28 - 4 * step)) >> 28));
#endif
  }
};

#if defined(__AVX512BF16__)
using BF16Format = PlainFormat<DotBF16>;
#else
using BF16Format = WideBF16Format;
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
using DynamicInt8Format = PlainFormat<DotInt8>;
#else
using DynamicInt8Format = WideInt8Format;
#endif

/// A unit of floating-point elements times a scale per column, rounded to the elements' type.
CACHEDIT_INLINE I32 scale_unit(I32 unit, F32 scale) {
#if defined(__AVX512BF16__)
  const __m512i units = reinterpret_cast<__m512i>(unit);
  const F32 low = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(units, 16)), scale);
  const __m512i upper = _mm512_and_si512(units, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  const F32 high = _mm512_mul_ps(_mm512_castsi512_ps(upper), scale);
  // The low halves of both results in the low halves of 32-bit lanes, and likewise the high ones.
  const __m512i packed = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  const __m512i order = _mm512_add_epi32(
      _mm512_set1_epi32(16 << 16),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x10001),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  return reinterpret_cast<I32>(_mm512_permutexvar_epi16(order, packed));
#else
  return bits(from_bits(unit) * scale);
#endif
}

/// Whether the products read panels where they lie.
template <class Format>
inline constexpr bool kDirect = __is_same(Format, PlainFormat<typename Format::Dot>);
/// Elements of K that a word holds.
template <class Format>
inline constexpr int kWordElements = Format::kSteps* Format::Dot::kPack;
/// Whether A is quantized, too.
template <class Format>
inline constexpr bool kDynamic = __is_same(Format, DynamicInt8Format);

/// Calls visit(format) for the form.
template <class Visit>
CACHEDIT_INLINE void visit_format(WeightForm form, const Visit& visit) {
  switch (form) {
    case WeightForm::kFloat32:
      return visit(PlainFormat<DotF32>{});
    case WeightForm::kBFloat16:
      return visit(BF16Format{});
    case WeightForm::kInt8:
      return visit(DynamicInt8Format{});
    case WeightForm::kInt8WeightOnly:
      return visit(Int8Format{});
    case WeightForm::kInt4WeightOnly:
      return visit(Int4Format{});
    case WeightForm::kE4M3WeightOnly:
      return visit(E4M3Format{});
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
