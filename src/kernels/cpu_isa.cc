#include "kernels/cpu_isa.h"

namespace cachedit::kernels {

const char* isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx2Vnni:
      return "avx2_vnni";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512_vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

bool isa_supported(CpuIsa isa) {
  if (isa == CpuIsa::kPortable) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool avx512_vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case CpuIsa::kPortable:
      return true;
    case CpuIsa::kAvx2:
      return avx2;
    case CpuIsa::kAvx2Vnni:
      return avx2 && __builtin_cpu_supports("avxvnni");
    case CpuIsa::kAvx512:
      return avx512;
    case CpuIsa::kAvx512Vnni:
      return avx512_vnni;
    case CpuIsa::kAvx512Bf16:
      return avx512_vnni && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return false;
}

CpuIsa best_isa() {
  CpuIsa best = CpuIsa::kPortable;
  for (const CpuIsa isa : kAllIsas) {
    if (isa_supported(isa)) best = isa;
  }
  return best;
}

}  // namespace cachedit::kernels
