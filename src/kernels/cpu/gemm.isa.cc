#include "kernels/gemm.h"

#include "kernels/cpu/gemm_run.h"

namespace cachedit::kernels::CACHEDIT_ISA {

size_t gemm_scratch_bytes(const GemmProblem& problem, int threads) {
  int64_t bytes = 0;
  visit_format(problem.weight.form, [&](auto format) {
    bytes = GemmRun<decltype(format)>(problem, threads).scratch_bytes();
  });
  return static_cast<size_t>(bytes);
}

void gemm(const GemmProblem& problem, void* scratch, const Parallel& parallel) {
  visit_format(problem.weight.form, [&](auto format) {
    GemmRun<decltype(format)>(problem, parallel.threads).run(scratch, parallel);
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
