// What the row operators share: typed vectors of a row with a tail, loops over a row's vectors, and
// rows spread over threads. Included only by *.isa.cc files.
#pragma once

#include "kernels/cpu/convert.h"
#include "kernels/cpu/work.h"
#include "kernels/operators.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Vectors of a row whose element type the compiler knows.
template <ElementType type>
struct Elements {
  static CACHEDIT_INLINE const void* at(const void* row, int64_t i) { return offset(row, type, i); }
  static CACHEDIT_INLINE void* at(void* row, int64_t i) { return offset(row, type, i); }
  static CACHEDIT_INLINE F32 load(const void* row, int64_t i) {
#if defined(__AVX2__)
    // GCC 12 widens vectors by halves where it is not told the instruction.
    if constexpr (type == ElementType::kBFloat16) return widened(offset(row, type, i));
#endif
    return load_as_float(row, type, i);
  }
  /// The first `count` < kLanes elements from i on, then zeros.
  static CACHEDIT_INLINE F32 load_tail(const void* row, int64_t i, int64_t count) {
#if defined(__AVX512F__)
    const void* from = offset(row, type, i);
    if constexpr (type == ElementType::kFloat32) return _mm512_maskz_loadu_ps(mask(count), from);
    const __m256i half = _mm256_maskz_loadu_epi16(mask(count), from);
    if constexpr (type == ElementType::kFloat16) return _mm512_cvtph_ps(half);
    return from_bits(reinterpret_cast<I32>(_mm512_cvtepu16_epi32(half)) << 16);
#else
    return copied_tail(row, i, count);
#endif
  }
  static CACHEDIT_INLINE void store(void* row, int64_t i, F32 v) {
    store_from_float(row, type, i, v);
  }
  static CACHEDIT_INLINE void store_tail(void* row, int64_t i, int64_t count, F32 v) {
#if defined(__AVX512F__)
    void* to = offset(row, type, i);
    if constexpr (type == ElementType::kFloat32) return _mm512_mask_storeu_ps(to, mask(count), v);
    alignas(32) uint16_t lanes[kLanes];
    store(lanes, 0, v);
    _mm256_mask_storeu_epi16(to, mask(count),
                             _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes)));
#else
    copy_tail(row, i, count, v);
#endif
  }

  /// To the element type and back.
  static CACHEDIT_INLINE F32 round(F32 v) {
    if constexpr (type == ElementType::kBFloat16) return round_bf16(v);
    if constexpr (type == ElementType::kFloat16) return round_fp16(v);
    return v;
  }

 private:
#if defined(__AVX512F__)
  static CACHEDIT_INLINE F32 widened(const void* p) {
    const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return from_bits(reinterpret_cast<I32>(_mm512_cvtepu16_epi32(half)) << 16);
  }
#elif defined(__AVX2__)
  static CACHEDIT_INLINE F32 widened(const void* p) {
    const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
    return from_bits(reinterpret_cast<I32>(_mm256_cvtepu16_epi32(half)) << 16);
  }
#endif

#if defined(__AVX512F__)
  static CACHEDIT_INLINE __mmask16 mask(int64_t count) {
    return static_cast<__mmask16>((1u << count) - 1);
  }
#else
  // Calls, since a copy of unknown length is long and rows seldom have a tail. The buffers are of
  // bytes, which may be read as any type.
  static __attribute__((noinline)) F32 copied_tail(const void* row, int64_t i, int64_t count) {
    alignas(64) unsigned char lanes[kLanes * 4] = {};
    __builtin_memcpy(lanes, offset(row, type, i), tail_bytes(count));
    return load(lanes, 0);
  }
  static __attribute__((noinline)) void copy_tail(void* row, int64_t i, int64_t count, F32 v) {
    alignas(64) unsigned char lanes[kLanes * 4];
    store(lanes, 0, v);
    __builtin_memcpy(offset(row, type, i), lanes, tail_bytes(count));
  }
  static CACHEDIT_INLINE size_t tail_bytes(int64_t count) {
    return static_cast<size_t>(count * element_size(type));
  }
#endif

  static CACHEDIT_INLINE F32 round_bf16(F32 v) {
#if defined(__AVX512BF16__)
    const __m256i packed = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
    return from_bits(reinterpret_cast<I32>(_mm512_cvtepu16_epi32(packed)) << 16);
#else
    const I32 u = bits(v);
    const I32 rounded = (u + ((u >> 16) & 1) + 0x7fff) & static_cast<int32_t>(0xffff0000);
    return select(v != v, v, from_bits(rounded));
#endif
  }
  static CACHEDIT_INLINE F32 round_fp16(F32 v) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes; ++i) v[i] = half_to_float(float_to_half(v[i]));
    return v;
#endif
  }
};

/// Calls run(Elements<type>{}).
template <class Run>
CACHEDIT_INLINE void with_type(ElementType type, const Run& run) {
  switch (type) {
    case ElementType::kFloat32:
      return run(Elements<ElementType::kFloat32>{});
    case ElementType::kBFloat16:
      return run(Elements<ElementType::kBFloat16>{});
    case ElementType::kFloat16:
      return run(Elements<ElementType::kFloat16>{});
  }
}

/// Calls run(Elements<type>{}, Elements<vector_type>{}); vector_type is `type` or kFloat32.
template <class Run>
CACHEDIT_INLINE void with_types(ElementType type, ElementType vector_type, const Run& run) {
  with_type(type, [&]<class X>(X x) {
    vector_type == type ? run(x, x) : run(x, Elements<ElementType::kFloat32>{});
  });
}

/// Independent sums of a row, which hide the latency of an addition.
inline constexpr int kSlots = 4;

CACHEDIT_INLINE float reduce_slots(const F32 (&sums)[kSlots]) {
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// Calls body(i, slot) for every full vector of a row, i its first column, and returns the column
/// behind the last one.
template <class Body>
CACHEDIT_INLINE int64_t full_vectors(int64_t columns, const Body& body) {
  int64_t i = 0;
  for (; i + kSlots * kLanes <= columns; i += kSlots * kLanes) {
#pragma GCC unroll 4
    for (int slot = 0; slot < kSlots; ++slot) body(i + slot * kLanes, slot);
  }
  for (; i + kLanes <= columns; i += kLanes) body(i, 0);
  return i;
}

/// v in the first `count` lanes, else zero.
CACHEDIT_INLINE F32 first_lanes(F32 v, int64_t count) {
  I32 index{};
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return select(index < splat(static_cast<int32_t>(count)), v, F32{});
}

/// Calls row(i) for i in [0, rows), some rows at a time on one thread: enough to be worth handing
/// out, and all on the calling thread where there are few.
template <class Row>
inline void for_each_row(const Parallel& parallel, int64_t rows, int64_t row_bytes,
                         const Row& row) {
  constexpr int64_t kItemBytes = int64_t{32} << 10;
  const int64_t fitting = row_bytes > 0 ? kItemBytes / row_bytes : rows;
  const int64_t step = fitting > 1 ? fitting : 1;
  for_each_item(parallel, (rows + step - 1) / step, [&](int64_t item, int /*thread*/) {
    const int64_t begin = item * step;
    const int64_t end = rows - begin < step ? rows : begin + step;
    for (int64_t i = begin; i < end; ++i) row(i);
  });
}

/// Row i of the rows of all batch items together.
CACHEDIT_INLINE int64_t row_offset(const RowStrides& strides, int64_t rows, int64_t i) {
  return i / rows * strides.batch + i % rows * strides.row;
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
