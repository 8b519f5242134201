// FoCa (arXiv 2508.16211): the trapezoidal rule from the last computed step, with the mean of the
// slope there and the slope of the latest values, forecast ones included.
#pragma once

#include "cache/calibrators/calibrator.h"

namespace cachedit::cache {

class FoCa final : public Forecaster {
 public:
  void update(const at::Tensor& value) override;
  at::Tensor approximate() override;
  int64_t bytes() const override;

 private:
  int64_t last_update_ = -1;
  at::Tensor latest_;         ///< the latest value, computed or forecast
  at::Tensor before_latest_;  ///< undefined before the second one
  at::Tensor computed_;       ///< at the last computed step
  at::Tensor before_computed_;
};

}  // namespace cachedit::cache
