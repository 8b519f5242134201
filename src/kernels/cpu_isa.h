// The instruction levels that every kernel is compiled for, and what this CPU has.
#pragma once

namespace cachedit::kernels {

/// Ordered by preference. Each level includes what its name says and the vector width it stands
/// for: kAvx2 is AVX2 + FMA + F16C; kAvx512 is F, BW, DQ and VL.
enum class CpuIsa { kPortable, kAvx2, kAvx2Vnni, kAvx512, kAvx512Vnni, kAvx512Bf16 };

inline constexpr CpuIsa kAllIsas[] = {CpuIsa::kPortable, CpuIsa::kAvx2,       CpuIsa::kAvx2Vnni,
                                      CpuIsa::kAvx512,   CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16};

/// "portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16".
const char* isa_name(CpuIsa isa);

/// Whether this build contains the level and this CPU can run it.
bool isa_supported(CpuIsa isa);

/// The best supported level.
CpuIsa best_isa();

}  // namespace cachedit::kernels
