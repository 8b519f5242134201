#include "support/tensor_compare.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>
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

double relative_l1(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  // One pass without temporaries: kernel tests spend their time here.
  const at::Tensor a = got.to(at::kDouble).contiguous(), b = want.to(at::kDouble).contiguous();
  const double* p = a.const_data_ptr<double>();
  const double* q = b.const_data_ptr<double>();
  double distance = 0, norm = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    distance += std::abs(p[i] - q[i]);
    norm += std::abs(q[i]);
  }
  if (!std::isfinite(distance)) return std::numeric_limits<double>::infinity();
  return norm == 0 ? distance : distance / norm;
}

double max_abs_error(const at::Tensor& got, const at::Tensor& want) {
  if (!comparable(got, want)) return std::numeric_limits<double>::infinity();
  if (want.numel() == 0) return 0;
  return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

double cosine(const at::Tensor& got, const at::Tensor& want) {
  if (!comparable(got, want)) return -1;
  const at::Tensor a = got.to(at::kDouble), b = want.to(at::kDouble);
  const double norms = std::sqrt((a * a).sum().item<double>() * (b * b).sum().item<double>());
  if (norms == 0) return relative_l1(got, want) == 0 ? 1 : 0;
  return (a * b).sum().item<double>() / norms;
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return ((a == b) | (a.isnan() & b.isnan())).all().item<bool>();
}

}  // namespace cachedit::test
