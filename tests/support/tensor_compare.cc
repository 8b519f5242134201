#include "support/tensor_compare.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <limits>

namespace cachedit::test {
namespace {

bool comparable(const at::Tensor& got, const at::Tensor& want) {
  return got.sizes() == want.sizes() && at::isfinite(got.to(at::kDouble)).all().item<bool>();
}

}  // namespace

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  if (!comparable(got, want)) return std::numeric_limits<double>::infinity();
  const at::Tensor reference = want.to(at::kDouble);
  const double norm = at::linalg_vector_norm(reference).item<double>();
  const double distance = at::linalg_vector_norm(got.to(at::kDouble) - reference).item<double>();
  return norm == 0 ? distance : distance / norm;
}

double max_abs_error(const at::Tensor& got, const at::Tensor& want) {
  if (!comparable(got, want)) return std::numeric_limits<double>::infinity();
  if (want.numel() == 0) return 0;
  return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace cachedit::test
