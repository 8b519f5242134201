// What kernels run on: the instruction level of this process and LibTorch's own OpenMP threads.
#pragma once

#include <string>

#include "kernels/cpu_isa.h"
#include "kernels/parallel.h"

namespace cachedit {

/// The level that a value of CACHEDIT_CPU_ISA names; the best one for an empty value. Throws
/// ConfigError listing what this machine has for any other.
kernels::CpuIsa parse_cpu_isa(const std::string& name);

/// The level of every kernel in this process: CACHEDIT_CPU_ISA, else the best one.
kernels::CpuIsa cpu_isa();

/// As many threads as ATen uses now; one where the caller already is one of several.
kernels::Parallel cpu_threads();

}  // namespace cachedit
