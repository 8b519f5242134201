#include "base/cpu.h"

#include "base/environment.h"
#include "base/fail.h"

namespace cachedit {

kernels::CpuIsa parse_cpu_isa(const std::string& name) {
  if (name.empty()) return kernels::best_isa();
  std::string supported;
  for (const kernels::CpuIsa isa : kernels::kAllIsas) {
    if (!kernels::isa_supported(isa)) continue;
    if (name == kernels::isa_name(isa)) return isa;
    supported += std::string(supported.empty() ? "" : ", ") + kernels::isa_name(isa);
  }
  fail<ConfigError>("CACHEDIT_CPU_ISA", "this machine has no such instruction level: got '", name,
                    "'; use ", supported);
}

kernels::CpuIsa cpu_isa() {
  static const kernels::CpuIsa isa = parse_cpu_isa(environment().cpu_isa);
  return isa;
}

}  // namespace cachedit
