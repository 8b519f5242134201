#include "kernels/gemm.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(size_t gemm_scratch_bytes(const GemmProblem& problem, int threads))
CACHEDIT_DECLARE_LEVELS(void gemm(const GemmProblem& problem, void* scratch,
                                  const Parallel& parallel))

size_t gemm_scratch_bytes(const GemmProblem& problem, int threads, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, gemm_scratch_bytes(problem, threads));
}

void gemm(const GemmProblem& problem, void* scratch, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, gemm(problem, scratch, parallel));
}

}  // namespace cachedit::kernels
