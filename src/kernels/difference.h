// Sums of magnitudes of a change and of what changed, in one pass: what block caching decides by.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu_isa.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

struct DifferenceSums {
  double change = 0;     ///< sum of |previous - current|
  double magnitude = 0;  ///< sum of |previous|
};

/// current is states - base, rounded to `type` as a stored tensor would be, or states alone where
/// base is null. All arrays hold `count` contiguous elements.
DifferenceSums difference_sums(ElementType type, const void* previous, const void* states,
                               const void* base, int64_t count, const Parallel& parallel,
                               CpuIsa isa);

}  // namespace cachedit::kernels
