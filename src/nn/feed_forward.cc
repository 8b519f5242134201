#include "nn/feed_forward.h"

namespace cachedit::nn {

FeedForward::FeedForward(const WeightScope& scope, int64_t width, int64_t hidden,
                         Activation activation)
    : activation_(activation),
      proj_in_(scope / "net.0.proj", width, hidden),
      proj_out_(scope / "net.2", hidden, width) {}

at::Tensor FeedForward::operator()(const at::Tensor& x) const {
  return proj_out_(activate(activation_, proj_in_(x)));
}

}  // namespace cachedit::nn
