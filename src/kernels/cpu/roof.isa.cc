// The register-only loops of kernels/roof.h for one instruction level: the multiply-adds that the
// attention kernels run (dot.h), without their memory. Each instruction depends on
// an older result of its own accumulator only, and there are more accumulators than the latency of
// the instruction needs, so that nothing but the arithmetic units limits the loop.
#include "kernels/roof.h"

#include "kernels/cpu/dot.h"

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

/// As many accumulators as a register block of the attention kernels has.
constexpr int kAccumulators = kRows * kVecs;

/// A unit of small elements, whose sums stay finite or wrap harmlessly: 0.5, a pair of bf16 0.5, or
/// threes.
template <class Dot>
constexpr int32_t unit() {
  if (__is_same(Dot, DotF32)) return 0x3f000000;
  if (__is_same(Dot, DotBF16)) return 0x3f003f00;
  return Dot::kPack == 4 ? 0x03030303 : 0x00030003;
}

template <class Dot>
double run_steps(int64_t iterations) {
  I32 a = splat(unit<Dot>());
  I32 b = splat(unit<Dot>());
  renew(b);  // a product with a known constant may become a shift
  typename Dot::Acc sums[kAccumulators] = {};
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) {
      renew(a);
      sums[j] = Dot::step(sums[j], a, b);
    }
  }
#pragma GCC unroll 24
  for (int j = 0; j < kAccumulators; ++j) renew(sums[j]);  // a result that nobody needs is dropped
  constexpr int kOperations = 2 * Dot::kPack * kLanes;
  return static_cast<double>(iterations) * kAccumulators * kOperations;
}

}  // namespace

double run_roof_loop(RoofKind kind, int64_t iterations) {
  switch (kind) {
    case RoofKind::kFloat32:
      return run_steps<DotF32>(iterations);
    case RoofKind::kBFloat16:
      return run_steps<DotWide>(iterations);
    case RoofKind::kInt8:
      return run_steps<DotInt8>(iterations);
  }
  return 0;
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
