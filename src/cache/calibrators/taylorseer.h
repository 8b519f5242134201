// TaylorSeer (arXiv 2503.06923): extrapolation with divided differences of the computed steps.
#pragma once

#include <vector>

#include "cache/calibrators/calibrator.h"

namespace cachedit::cache {

class TaylorSeer final : public Forecaster {
 public:
  /// `order` 0 reuses the last value, 1 extrapolates linearly, and so on.
  explicit TaylorSeer(int64_t order) : order_(order) {}

  void update(const at::Tensor& value) override;
  at::Tensor approximate() override;
  int64_t bytes() const override;

 private:
  int64_t order_;
  int64_t last_update_ = -1;
  /// The value at the last computed step and its divided differences, order by order.
  std::vector<at::Tensor> derivatives_;
};

}  // namespace cachedit::cache
