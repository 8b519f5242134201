#include "kernels/difference.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(DifferenceSums difference_sums(ElementType type, const void* previous,
                                                       const void* states, const void* base,
                                                       int64_t count, const Parallel& parallel))

DifferenceSums difference_sums(ElementType type, const void* previous, const void* states,
                               const void* base, int64_t count, const Parallel& parallel,
                               CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, difference_sums(type, previous, states, base, count, parallel));
}

}  // namespace cachedit::kernels
