// The MLP of a transformer block, names as in diffusers' FeedForward ("net.0.proj", "net.2").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/activation.h"
#include "nn/arena.h"
#include "nn/layers.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

class FeedForward {
 public:
  FeedForward(const WeightScope& scope, int64_t width, int64_t hidden, Activation activation);
  /// [..., width] -> [..., width]
  at::Tensor operator()(const at::Tensor& x) const { return add_to({}, {}, x); }
  /// residual + gate * mlp(x); x, residual [B, N, width], gate [B, width] (undefined: ones; without
  /// a residual as well: mlp(x)).
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& gate, const at::Tensor& x,
                    Arena* arena = nullptr) const;

 private:
  Activation activation_;
  Linear proj_in_;
  Linear proj_out_;
};

}  // namespace cachedit::nn
