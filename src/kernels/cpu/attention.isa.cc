#include "kernels/attention.h"

#include "kernels/cpu/attention_run.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

using ExactFloat = ExactScheme<DotF32, ExpAccuracy::kFine>;
using ExactHalf = ExactScheme<DotF32, ExpAccuracy::kHalf>;
using ExactWide = ExactScheme<DotWide, ExpAccuracy::kHalf>;

/// Rows that the hybrid scheme computes exactly: the first ones are the most sensitive.
int64_t exact_rows(const AttentionProblem& p) {
  if (p.scheme != AttentionScheme::kFp8) return 0;
  const int64_t rows = p.causal ? 128 : 256;
  return rows < p.queries ? rows : p.queries;
}

/// Calls visit(AttentionRun) for each part of the problem: rows and the scheme that computes them.
template <class Scheme, class Visit>
void visit_part(const AttentionProblem& p, RowRange rows, int threads, const Visit& visit) {
  if (rows.count > 0) visit(AttentionRun<Scheme>(p, rows, threads));
}

template <class Visit>
void visit_exact(const AttentionProblem& p, RowRange rows, int threads, const Visit& visit) {
  switch (p.type) {
    case ElementType::kFloat32:
      return visit_part<ExactFloat>(p, rows, threads, visit);
    case ElementType::kFloat16:
      return visit_part<ExactHalf>(p, rows, threads, visit);
    case ElementType::kBFloat16:
      return visit_part<ExactWide>(p, rows, threads, visit);
  }
}

template <class Visit>
void visit_parts(const AttentionProblem& p, int threads, const Visit& visit) {
  const int64_t exact = exact_rows(p);
  const RowRange rest{exact, p.queries - exact};
  switch (p.scheme) {
    case AttentionScheme::kExact:
      return visit_exact(p, rest, threads, visit);
    case AttentionScheme::kSage:
      return visit_part<SageScheme<true>>(p, rest, threads, visit);
    case AttentionScheme::kSageUnsmoothed:
      return visit_part<SageScheme<false>>(p, rest, threads, visit);
    case AttentionScheme::kFp8:
      visit_exact(p, {0, exact}, threads, visit);
      return visit_part<Fp8Scheme>(p, rest, threads, visit);
    case AttentionScheme::kFp8PerBlock:
      return visit_part<Fp8PerBlockScheme>(p, rest, threads, visit);
    case AttentionScheme::kFp4:
      return visit_part<Fp4Scheme>(p, rest, threads, visit);
  }
}

}  // namespace

size_t attention_scratch_bytes(const AttentionProblem& problem, int threads) {
  int64_t most = 0;
  visit_parts(problem, threads, [&](const auto& run) {
    if (run.scratch_bytes() > most) most = run.scratch_bytes();
  });
  return static_cast<size_t>(most);
}

void attention(const AttentionProblem& problem, void* scratch, const Parallel& parallel) {
  visit_parts(problem, parallel.threads, [&](auto&& run) { run.run(scratch, parallel); });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
