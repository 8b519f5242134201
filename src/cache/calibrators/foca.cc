#include "cache/calibrators/foca.h"

#include <ATen/TensorOperators.h>

namespace cachedit::cache {
namespace {

/// Steps ahead that the slopes are trusted for; beyond, the forecast falls back to the anchor.
constexpr double kMaxHorizon = 3.0;

}  // namespace

void FoCa::update(const at::Tensor& value) {
  if (latest_.defined() && latest_.sizes() != value.sizes()) {
    latest_ = before_latest_ = computed_ = before_computed_ = at::Tensor();
    step_ = -1;
  }
  last_update_ = step_;
  before_computed_ = computed_;
  computed_ = value;
  before_latest_ = latest_;
  latest_ = computed_;
}

at::Tensor FoCa::approximate() {
  if (!before_latest_.defined() || !before_computed_.defined()) return computed_;
  const auto elapsed = static_cast<double>(step_ - last_update_);
  const at::Tensor slopes = (computed_ - before_computed_) + (latest_ - before_latest_);
  at::Tensor forecast;
  if (elapsed <= kMaxHorizon) {
    forecast = computed_ + (elapsed / 2) * slopes;
  } else {
    const double weight = kMaxHorizon / elapsed;
    forecast = weight * (computed_ + (kMaxHorizon / 2) * slopes) + (1 - weight) * computed_;
  }
  before_latest_ = latest_;
  latest_ = forecast;
  return forecast;
}

int64_t FoCa::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor* t : {&latest_, &before_latest_, &computed_, &before_computed_}) {
    // The latest value is the computed one until a forecast follows.
    if (t->defined() && !(t == &latest_ && latest_.is_same(computed_))) {
      sum += static_cast<int64_t>(t->nbytes());
    }
  }
  return sum;
}

}  // namespace cachedit::cache
