// Register-only dot-product loops: what the arithmetic units can do at most, for benchmarks.
#pragma once

#include <cstdint>

#include "kernels/cpu_isa.h"
#include "kernels/parallel.h"

namespace cachedit::kernels {

enum class RoofKind { kFloat32, kBFloat16, kInt8 };

/// Runs `iterations` rounds of independent multiply-adds in registers on every thread and returns
/// the number of operations done (a multiply-add counts as two). A level without an instruction
/// for the kind runs what its attention kernels run instead (fp32 for bf16, 16-bit for int8).
double run_roof(RoofKind kind, int64_t iterations, const Parallel& parallel, CpuIsa isa);

}  // namespace cachedit::kernels
