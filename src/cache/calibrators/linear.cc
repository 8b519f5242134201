#include "cache/calibrators/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/fail.h"

namespace cachedit::cache {
namespace {

constexpr const char* kWhere = "linear calibrator";
/// Values kept; fits use fewer.
constexpr size_t kMaxHistory = 8;
/// Part of the mean square of the sources that the ridge adds: keeps nearly equal neighbours from
/// taking huge weights of opposite sign.
constexpr double kRidge = 1e-5;

}  // namespace

void Linear::update(const at::Tensor& value) {
  if (!values_.empty() && values_.front().second.sizes() != value.sizes()) {
    values_.clear();
    step_ = -1;
  }
  // The step that creates a state is number -1, and it is step 0 of the run.
  values_.emplace_front(step_ + 1, value);
  if (values_.size() > kMaxHistory) values_.pop_back();
}

at::Tensor Linear::approximate() {
  const int64_t step = step_ + 1;
  const auto found = steps_.find(step);
  if (found == steps_.end()) {
    fail<ConfigError>(kWhere, "no weights for step ", step,
                      "; use the steps_computation_mask that they were fitted for");
  }
  const LinearWeights& fitted = found->second;
  at::Tensor sum;
  for (size_t j = 0; j < fitted.from.size(); ++j) {
    if (j >= values_.size() || values_[j].first != fitted.from[j]) {
      fail<ConfigError>(kWhere, "the weights of step ", step, " are for computed step ",
                        fitted.from[j], ", which this run did not compute; use the ",
                        "steps_computation_mask and policy that they were fitted for");
    }
    const at::Tensor& value = values_[j].second;
    sum = sum.defined() ? at::add(sum, value, fitted.weights[j]) : value * fitted.weights[j];
  }
  return sum;
}

int64_t Linear::bytes() const {
  int64_t sum = 0;
  for (const auto& [step, value] : values_) sum += static_cast<int64_t>(value.nbytes());
  return sum;
}

std::vector<double> fit_weights(const std::vector<std::vector<at::Tensor>>& sources,
                                const std::vector<at::Tensor>& targets) {
  const auto terms = static_cast<int64_t>(sources.front().size());
  const auto f64 = at::TensorOptions().dtype(at::kDouble);
  at::Tensor gram = at::zeros({terms, terms}, f64);
  at::Tensor right = at::zeros({terms}, f64);
  const auto inner = [](const at::Tensor& a, const at::Tensor& b) {
    return at::dot(a.flatten().to(at::kDouble), b.flatten().to(at::kDouble)).item<double>();
  };
  for (size_t sample = 0; sample < targets.size(); ++sample) {
    for (int64_t i = 0; i < terms; ++i) {
      const at::Tensor& source = sources[sample][static_cast<size_t>(i)];
      right[i] += inner(source, targets[sample]);
      for (int64_t j = 0; j <= i; ++j) {
        const double product = inner(source, sources[sample][static_cast<size_t>(j)]);
        gram[i][j] += product;
        if (i != j) gram[j][i] += product;
      }
    }
  }
  const double ridge = kRidge * gram.diagonal().mean().item<double>();
  gram.diagonal().add_(std::max(ridge, 1e-30));
  // The ridge pulls towards reusing the newest value, not towards zero.
  right[0] += std::max(ridge, 1e-30);
  const at::Tensor weights = at::linalg_solve(gram, right);
  std::vector<double> result;
  for (int64_t i = 0; i < terms; ++i) result.push_back(weights[i].item<double>());
  return result;
}

}  // namespace cachedit::cache
