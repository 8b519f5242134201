#include "kernels/attention.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(size_t attention_scratch_bytes(const AttentionProblem& problem,
                                                       int threads))
CACHEDIT_DECLARE_LEVELS(void attention(const AttentionProblem& problem, void* scratch,
                                       const Parallel& parallel))

size_t attention_scratch_bytes(const AttentionProblem& problem, int threads, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, attention_scratch_bytes(problem, threads));
}

void attention(const AttentionProblem& problem, void* scratch, const Parallel& parallel,
               CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, attention(problem, scratch, parallel));
}

}  // namespace cachedit::kernels
