// Vector conversions between fp32 and the 16-bit types, and rows of them with any length.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/element_type.h"

namespace cachedit::kernels::CACHEDIT_ISA {

typedef uint16_t U16 __attribute__((vector_size(kLanes * 2), may_alias));
typedef uint16_t U16u __attribute__((vector_size(kLanes * 2), may_alias, aligned(2)));
typedef uint8_t U8u __attribute__((vector_size(kLanes), may_alias, aligned(1)));

CACHEDIT_INLINE F32 load_bf16(const uint16_t* p) {
  // GCC 12 widens a converted vector in halves.
#if defined(__AVX512F__)
  const __m512i wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return from_bits(reinterpret_cast<I32>(_mm512_slli_epi32(wide, 16)));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return from_bits(reinterpret_cast<I32>(_mm256_slli_epi32(wide, 16)));
#else
  return from_bits(__builtin_convertvector(*reinterpret_cast<const U16u*>(p), I32) << 16);
#endif
}

/// Nearest bf16, ties to even; NaN stays NaN.
CACHEDIT_INLINE void store_bf16(uint16_t* p, F32 v) {
#if defined(__AVX512BF16__)
  const __m256bh packed = _mm512_cvtneps_pbh(v);
  __builtin_memcpy(p, &packed, sizeof(packed));
#else
  const I32 u = bits(v);
  const I32 odd = (u >> 16) & 1;
  const I32 rounded = reinterpret_cast<I32>(reinterpret_cast<U32>(u + odd + 0x7fff) >> 16);
  const I32 is_nan = v != v;
  const I32 result = (is_nan & 0x7fc0) | (~is_nan & rounded);
  *reinterpret_cast<U16u*>(p) = __builtin_convertvector(result, U16);
#endif
}

/// Stores kLanes consecutive elements of a row in a product's element type.
CACHEDIT_INLINE void store_elements(float* p, F32 v) { store(p, v); }
CACHEDIT_INLINE void store_elements(uint16_t* p, F32 v) { store_bf16(p, v); }

/// The low byte or 16 bits of each lane.
CACHEDIT_INLINE void store_low(uint8_t* p, I32 v) {
#if defined(__AVX512F__)
  const __m128i packed = _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
#else
  *reinterpret_cast<U8u*>(p) = __builtin_convertvector(v, U8u);
#endif
}
CACHEDIT_INLINE void store_low(int8_t* p, I32 v) { store_low(reinterpret_cast<uint8_t*>(p), v); }
CACHEDIT_INLINE void store_low(int16_t* p, I32 v) {
  *reinterpret_cast<U16u*>(p) = __builtin_convertvector(v, U16);
}

/// One fp16 number: the path of levels without conversion instructions.
CACHEDIT_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  uint32_t u = 0;
  if (magnitude >= 0x7c00u) {
    u = 0x7f800000u | (magnitude << 13);
  } else if (magnitude >= 0x400u) {
    u = (magnitude << 13) + 0x38000000u;
  } else {  // subnormal: magnitude * 2^-24
    const float f = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    __builtin_memcpy(&u, &f, sizeof(u));
  }
  u |= sign;
  float f = 0;
  __builtin_memcpy(&f, &u, sizeof(f));
  return f;
}

CACHEDIT_INLINE uint16_t float_to_half(float f) {
  uint32_t u = 0;
  __builtin_memcpy(&u, &f, sizeof(u));
  const uint32_t sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (u >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (u < 0x38800000u) {  // subnormal: adding 0.5 rounds to a multiple of 2^-24
    float magnitude = 0;
    __builtin_memcpy(&magnitude, &u, sizeof(magnitude));
    magnitude += 0.5f;
    __builtin_memcpy(&u, &magnitude, sizeof(u));
    return static_cast<uint16_t>(sign | (u - 0x3f000000u));
  }
  u += 0xc8000fffu + ((u >> 13) & 1);  // rebias by -112 and round to even
  return static_cast<uint16_t>(sign | (u >> 13));
}

CACHEDIT_INLINE F32 load_fp16(const uint16_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  F32 v{};
  for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(p[i]);
  return v;
#endif
}

CACHEDIT_INLINE void store_fp16(uint16_t* p, F32 v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(v[i]);
#endif
}

/// kLanes elements starting at element `index` of an array of `type`.
CACHEDIT_INLINE F32 load_as_float(const void* data, ElementType type, int64_t index) {
  switch (type) {
    case ElementType::kBFloat16:
      return load_bf16(static_cast<const uint16_t*>(data) + index);
    case ElementType::kFloat16:
      return load_fp16(static_cast<const uint16_t*>(data) + index);
    case ElementType::kFloat32:
      break;
  }
  return load(static_cast<const float*>(data) + index);
}

CACHEDIT_INLINE void store_from_float(void* data, ElementType type, int64_t index, F32 v) {
  switch (type) {
    case ElementType::kBFloat16:
      return store_bf16(static_cast<uint16_t*>(data) + index, v);
    case ElementType::kFloat16:
      return store_fp16(static_cast<uint16_t*>(data) + index, v);
    case ElementType::kFloat32:
      break;
  }
  store(static_cast<float*>(data) + index, v);
}

CACHEDIT_INLINE int64_t element_size(ElementType type) {
  return type == ElementType::kFloat32 ? 4 : 2;
}

CACHEDIT_INLINE const void* offset(const void* data, ElementType type, int64_t elements) {
  return static_cast<const char*>(data) + elements * element_size(type);
}
CACHEDIT_INLINE void* offset(void* data, ElementType type, int64_t elements) {
  return static_cast<char*>(data) + elements * element_size(type);
}

/// out[0, count) in fp32, and zeros up to the next multiple of kLanes.
inline void load_row(const void* row, ElementType type, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, load_as_float(row, type, i));
  if (i == count) return;
  // Bytes, which may be read as elements of any type.
  alignas(64) unsigned char tail[kLanes * sizeof(float)] = {};
  __builtin_memcpy(tail, offset(row, type, i),
                   static_cast<size_t>((count - i) * element_size(type)));
  store(out + i, load_as_float(tail, type, 0));
}

/// The first `count` of `in`, which is readable up to the next multiple of kLanes.
inline void store_row(const float* in, void* row, ElementType type, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_from_float(row, type, i, load(in + i));
  if (i == count) return;
  alignas(64) unsigned char tail[kLanes * sizeof(float)] = {};
  store_from_float(tail, type, 0, load(in + i));
  __builtin_memcpy(offset(row, type, i), tail,
                   static_cast<size_t>((count - i) * element_size(type)));
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
