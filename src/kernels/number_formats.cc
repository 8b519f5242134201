#include "kernels/number_formats.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(void round_to_e4m3(const float* in, float* out, int64_t count))
CACHEDIT_DECLARE_LEVELS(void round_to_nvfp4(const float* in, float* values, float* scales,
                                            int64_t count))

void round_to_e4m3(const float* in, float* out, int64_t count, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, round_to_e4m3(in, out, count));
}

void round_to_nvfp4(const float* in, float* values, float* scales, int64_t count, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, round_to_nvfp4(in, values, scales, count));
}

}  // namespace cachedit::kernels
