#include "nn/feed_forward.h"

namespace cachedit::nn {

FeedForward::FeedForward(const WeightScope& scope, int64_t width, int64_t hidden,
                         Activation activation)
    : activation_(activation),
      proj_in_(scope / "net.0.proj", width, hidden),
      proj_out_(scope / "net.2", hidden, width) {}

at::Tensor FeedForward::add_to(const at::Tensor& residual, const at::Tensor& gate,
                               const at::Tensor& x) const {
  const at::Tensor hidden = proj_in_.run({.input = x, .activation = activation_});
  return proj_out_.run({.input = hidden, .residual = residual, .gate = gate});
}

}  // namespace cachedit::nn
