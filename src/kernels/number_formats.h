// The 8- and 4-bit floating-point formats of the low-bit attention schemes, as rounding functions:
// results are ordinary floats that the format holds exactly.
#pragma once

#include <cstdint>

#include "kernels/cpu_isa.h"

namespace cachedit::kernels {

/// out[i] is the OCP e4m3 number nearest to in[i] (ties to even, subnormals down to 2^-9,
/// saturating at +-448; NaN stays NaN).
void round_to_e4m3(const float* in, float* out, int64_t count, CpuIsa isa);

/// NVFP4: per 16 elements (count is a multiple of 16) one scale e4m3(amax / 6), and each element
/// the e2m1 number {0, .5, 1, 1.5, 2, 3, 4, 6} nearest to in / scale (ties to even, saturating);
/// all zero where the scale is 0. The fp32 outer scale of the format is the caller's: divide first.
void round_to_nvfp4(const float* in, float* values, float* scales, int64_t count, CpuIsa isa);

}  // namespace cachedit::kernels
