// Times, scratch memory and the roof that times are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cpu_isa.h"
#include "kernels/roof.h"

namespace cachedit::attention::bench {

/// GFLOP/s of the register-only loop with ATen's threads, the best of a few rounds.
double measure_roof(kernels::RoofKind kind, kernels::CpuIsa isa);

struct Timing {
  double ms = 0;     ///< median of `subject`
  double ratio = 0;  ///< median of yardstick / subject over the pairs
};

/// Runs both by turns, so that what slows the machine down meets both. Both are warm.
Timing time_pairs(const std::function<void()>& subject, const std::function<void()>& yardstick,
                  int64_t repeats);

/// The most that `call` holds at one time of what it allocates through LibTorch on this thread.
size_t peak_allocation(const std::function<void()>& call);

}  // namespace cachedit::attention::bench
