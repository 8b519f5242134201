#include "nn/feed_forward.h"

namespace cachedit::nn {

FeedForward::FeedForward(const WeightScope& scope, int64_t width, int64_t hidden,
                         Activation activation)
    : activation_(activation),
      proj_in_(scope / "net.0.proj", width, hidden),
      proj_out_(scope / "net.2", hidden, width) {}

at::Tensor FeedForward::add_to(const at::Tensor& residual, const at::Tensor& gate,
                               const at::Tensor& x, Arena* arena) const {
  LinearCall in{.input = x, .activation = activation_};
  if (x.dim() == 3) {
    in.out = take(arena, Arena::kMlp, {x.size(0), x.size(1), proj_in_.out_features()},
                  x.options().dtype(proj_in_.dtype()));
  }
  return proj_out_.run({.input = proj_in_.run(in), .residual = residual, .gate = gate});
}

}  // namespace cachedit::nn
