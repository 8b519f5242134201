// The register-only loops of kernels/roof.h for one instruction level. Each instruction depends on
// an older result of its own accumulator only, and there are more accumulators than the latency of
// the instruction needs, so that nothing but the arithmetic units limits the loop.
#include "kernels/roof.h"

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

// Tells the compiler that `value` may have changed, at no cost: without it, equal products would be
// computed once, or moved out of the loop.
#if defined(__x86_64__)
#define CACHEDIT_ROOF_REGISTER "x"
#elif defined(__aarch64__)
#define CACHEDIT_ROOF_REGISTER "w"
#else
#define CACHEDIT_ROOF_REGISTER "m"
#endif
template <class Vector>
inline __attribute__((always_inline)) void renew(Vector& value) {
  asm volatile("" : "+" CACHEDIT_ROOF_REGISTER(value));
}
#undef CACHEDIT_ROOF_REGISTER

// A step is one multiply-add instruction (or what stands for it): its operand type, its constant
// operand, and how many operations it does.
#if defined(__AVX512F__)

constexpr int kAccumulators = 24;  // of 32 registers

struct Float32Step {
  using Vector = __m512;
  static constexpr int kOperations = 2 * 16;
  static Vector operand() { return _mm512_set1_ps(0.5f); }
  static Vector run(Vector sum, Vector a, Vector b) { return _mm512_fmadd_ps(a, b, sum); }
};

#elif defined(__AVX2__)

constexpr int kAccumulators = 12;  // of 16 registers

struct Float32Step {
  using Vector = __m256;
  static constexpr int kOperations = 2 * 8;
  static Vector operand() { return _mm256_set1_ps(0.5f); }
  static Vector run(Vector sum, Vector a, Vector b) { return _mm256_fmadd_ps(a, b, sum); }
};

#else

constexpr int kAccumulators = 8;

struct Float32Step {
  using Vector = float __attribute__((vector_size(16)));
  static constexpr int kOperations = 2 * 4;
  static Vector operand() { return Vector{0.5f, 0.5f, 0.5f, 0.5f}; }
  static Vector run(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#endif

#if defined(__AVX512BF16__)

struct BFloat16Step {
  using Vector = __m512;
  static constexpr int kOperations = 2 * 32;
  static Vector operand() { return _mm512_castsi512_ps(_mm512_set1_epi16(0x3f00)); }  // 0.5
  static Vector run(Vector sum, Vector a, Vector b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

#else

using BFloat16Step = Float32Step;

#endif

#if defined(__AVX512VNNI__)

struct Int8Step {
  using Vector = __m512i;
  static constexpr int kOperations = 2 * 64;
  static Vector operand() { return _mm512_set1_epi8(3); }
  static Vector run(Vector sum, Vector a, Vector b) { return _mm512_dpbusd_epi32(sum, a, b); }
};

#elif defined(__AVX512BW__)

struct Int8Step {
  using Vector = __m512i;
  static constexpr int kOperations = 2 * 32;
  static Vector operand() { return _mm512_set1_epi16(3); }
  static Vector run(Vector sum, Vector a, Vector b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
  }
};

#elif defined(__AVXVNNI__)

struct Int8Step {
  using Vector = __m256i;
  static constexpr int kOperations = 2 * 32;
  static Vector operand() { return _mm256_set1_epi8(3); }
  static Vector run(Vector sum, Vector a, Vector b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
};

#elif defined(__AVX2__)

struct Int8Step {
  using Vector = __m256i;
  static constexpr int kOperations = 2 * 16;
  static Vector operand() { return _mm256_set1_epi16(3); }
  static Vector run(Vector sum, Vector a, Vector b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
};

#else

struct Int8Step {
  using Vector = int16_t __attribute__((vector_size(16)));
  static constexpr int kOperations = 2 * 8;
  static Vector operand() { return Vector{3, 3, 3, 3, 3, 3, 3, 3}; }
  static Vector run(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

#endif

template <class Step>
double run_steps(int64_t iterations) {
  using Vector = typename Step::Vector;
  Vector a = Step::operand();
  Vector b = Step::operand();
  renew(b);  // a product with a known constant may become a shift
  Vector sums[kAccumulators] = {};
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) {
      renew(a);
      sums[j] = Step::run(sums[j], a, b);
    }
  }
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) renew(sums[j]);  // a result that nobody needs is dropped
  return static_cast<double>(iterations) * kAccumulators * Step::kOperations;
}

}  // namespace

double run_roof_loop(RoofKind kind, int64_t iterations) {
  switch (kind) {
    case RoofKind::kFloat32:
      return run_steps<Float32Step>(iterations);
    case RoofKind::kBFloat16:
      return run_steps<BFloat16Step>(iterations);
    case RoofKind::kInt8:
      return run_steps<Int8Step>(iterations);
  }
  return 0;
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
