#include "cache/calibrators/taylorseer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>

#include <cmath>

namespace cachedit::cache {

void TaylorSeer::update(const at::Tensor& value) {
  if (!derivatives_.empty() && derivatives_.front().sizes() != value.sizes()) {
    derivatives_.clear();
    step_ = -1;
    last_update_ = -1;
  }
  std::vector<at::Tensor> next = {value};
  const auto window = static_cast<double>(step_ - last_update_);
  // cache-dit leaves the first steps after a state's creation without differences; so do we.
  for (size_t i = 0; i < static_cast<size_t>(order_) && i < derivatives_.size() && step_ > 1; ++i) {
    next.push_back((next[i] - derivatives_[i]) / window);
  }
  derivatives_ = std::move(next);
  last_update_ = step_;
}

at::Tensor TaylorSeer::approximate() {
  const auto elapsed = static_cast<double>(step_ - last_update_);
  at::Tensor sum = derivatives_.front();
  double factor = 1;
  for (size_t i = 1; i < derivatives_.size(); ++i) {
    factor *= elapsed / static_cast<double>(i);
    sum = at::add(sum, derivatives_[i], factor);
  }
  return sum;
}

int64_t TaylorSeer::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor& t : derivatives_) sum += static_cast<int64_t>(t.nbytes());
  return sum;
}

}  // namespace cachedit::cache
