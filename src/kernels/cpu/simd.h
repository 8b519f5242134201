// The vector type of the instruction level being compiled, and the few operations on it that
// compilers do not derive from plain operators. Included only by *.isa.cc files.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CACHEDIT_INLINE inline __attribute__((always_inline))

namespace cachedit::kernels::CACHEDIT_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float F32 __attribute__((vector_size(kLanes * 4), may_alias));
typedef int32_t I32 __attribute__((vector_size(kLanes * 4), may_alias));
typedef uint32_t U32 __attribute__((vector_size(kLanes * 4), may_alias));
// The same without the alignment promise, for loads and stores.
typedef float F32u __attribute__((vector_size(kLanes * 4), may_alias, aligned(4)));
typedef int32_t I32u __attribute__((vector_size(kLanes * 4), may_alias, aligned(4)));

CACHEDIT_INLINE F32 load(const float* p) { return *reinterpret_cast<const F32u*>(p); }
CACHEDIT_INLINE I32 load(const int32_t* p) { return *reinterpret_cast<const I32u*>(p); }
CACHEDIT_INLINE void store(float* p, F32 v) { *reinterpret_cast<F32u*>(p) = v; }
CACHEDIT_INLINE void store(int32_t* p, I32 v) { *reinterpret_cast<I32u*>(p) = v; }
CACHEDIT_INLINE F32 splat(float x) { return F32{} + x; }
CACHEDIT_INLINE I32 splat(int32_t x) { return I32{} + x; }
CACHEDIT_INLINE I32 bits(F32 v) { return reinterpret_cast<I32&>(v); }
CACHEDIT_INLINE F32 from_bits(I32 v) { return reinterpret_cast<F32&>(v); }
/// yes where the mask lane is all ones, no where it is zero.
CACHEDIT_INLINE F32 select(I32 mask, F32 yes, F32 no) {
  return from_bits((mask & bits(yes)) | (~mask & bits(no)));
}

/// Asks for the cache line at p. GCC drops loops of nothing but __builtin_prefetch.
CACHEDIT_INLINE void prefetch(const void* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
#else
  __builtin_prefetch(p);
#endif
}

inline constexpr float kInfinity = __builtin_inff();

CACHEDIT_INLINE F32 fma(F32 a, F32 b, F32 c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

/// Lane-wise; b where either is NaN.
CACHEDIT_INLINE F32 max(F32 a, F32 b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return select(a > b, a, b);
#endif
}
CACHEDIT_INLINE F32 min(F32 a, F32 b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#else
  return select(a < b, a, b);
#endif
}
CACHEDIT_INLINE F32 abs(F32 a) { return from_bits(bits(a) & 0x7fffffff); }

CACHEDIT_INLINE F32 to_float(I32 v) { return __builtin_convertvector(v, F32); }

/// Nearest integer, ties to even; |v| < 2^22.
CACHEDIT_INLINE I32 round_to_int(F32 v) {
#if defined(__AVX512F__)
  return reinterpret_cast<I32>(_mm512_cvtps_epi32(v));
#elif defined(__AVX2__)
  return reinterpret_cast<I32>(_mm256_cvtps_epi32(v));
#else
  // Adding 1.5 * 2^23 leaves the integer in the low bits of the mantissa.
  return bits(v + 12582912.0f) - 0x4b400000;
#endif
}

CACHEDIT_INLINE float reduce_max(F32 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#else
  float m = v[0];
#pragma GCC unroll 8
  for (int i = 1; i < kLanes; ++i) m = m > v[i] ? m : v[i];
  return m;
#endif
}
CACHEDIT_INLINE float reduce_add(F32 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(v);
#else
  float s = v[0];
#pragma GCC unroll 8
  for (int i = 1; i < kLanes; ++i) s += v[i];
  return s;
#endif
}

/// Polynomial of 2^f for f in [0, 1), relative error of the fit 7.4e-8 (kFine), 7.5e-5
/// (kHalf: far below bf16's 2e-3) or 1.7e-3 (kByte: half a step of an 8-bit P).
enum class ExpAccuracy { kFine, kHalf, kByte };

template <ExpAccuracy accuracy>
CACHEDIT_INLINE F32 exp2_fraction(F32 f) {
  // Minimax fits of 2^f on [0, 1] in relative error, made by tools/fit_exp2.py.
  if constexpr (accuracy == ExpAccuracy::kFine) {
    F32 p = splat(1.865033719e-3f);
    p = fma(p, f, splat(9.022697415e-3f));
    p = fma(p, f, splat(5.579448357e-2f));
    p = fma(p, f, splat(2.401666025e-1f));
    p = fma(p, f, splat(6.931510350e-1f));
    return fma(p, f, splat(1.0f));
  } else if constexpr (accuracy == ExpAccuracy::kHalf) {
    F32 p = splat(7.802300666e-2f);
    p = fma(p, f, splat(2.260693910e-1f));
    p = fma(p, f, splat(6.958328475e-1f));
    return fma(p, f, splat(9.999252452e-1f));
  } else {
    F32 p = splat(3.371894237e-1f);
    p = fma(p, f, splat(6.576362904e-1f));
    return fma(p, f, splat(1.001724762f));
  }
}

/// 2^x for x <= 127; 0 for -infinity and below 2^-126, NaN for NaN.
template <ExpAccuracy accuracy>
CACHEDIT_INLINE F32 exp2(F32 x) {
#if defined(__AVX512F__)
  // reduce gives x - floor(x) (0 for infinities), scalef multiplies by 2^floor(x).
  const F32 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(exp2_fraction<accuracy>(f), x);
#else
  const F32 limited = max(splat(-127.0f), x);  // keeps NaN: it is the second operand
#if defined(__AVX2__)
  const F32 whole = _mm256_floor_ps(limited);
  const I32 exponent = reinterpret_cast<I32>(_mm256_cvtps_epi32(whole));
#else
  const I32 nearest = round_to_int(limited);
  const I32 exponent = nearest + (to_float(nearest) > limited);  // a true comparison is -1
  const F32 whole = to_float(exponent);
#endif
  // At -127 the biased exponent is 0: the factor is 0, as wanted.
  return exp2_fraction<accuracy>(limited - whole) * from_bits((exponent + 127) << 23);
#endif
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
