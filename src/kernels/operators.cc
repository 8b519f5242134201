#include "kernels/operators.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(
    void layer_norm(const LayerNormProblem& problem, const Parallel& parallel);
    void norm_and_rotate(const HeadNormProblem& problem, const Parallel& parallel);
    void gated_residual(const GatedResidualProblem& problem, const Parallel& parallel);
    void activate(const ActivationProblem& problem, const Parallel& parallel);
    void row_magnitudes(const RowMagnitudeProblem& problem, const Parallel& parallel);
    void round_to_float8(const Float8Problem& problem, const Parallel& parallel))

void layer_norm(const LayerNormProblem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, layer_norm(problem, parallel));
}

void norm_and_rotate(const HeadNormProblem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, norm_and_rotate(problem, parallel));
}

void gated_residual(const GatedResidualProblem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, gated_residual(problem, parallel));
}

void activate(const ActivationProblem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, activate(problem, parallel));
}

void row_magnitudes(const RowMagnitudeProblem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, row_magnitudes(problem, parallel));
}

void round_to_float8(const Float8Problem& problem, const Parallel& parallel, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, round_to_float8(problem, parallel));
}

}  // namespace cachedit::kernels
