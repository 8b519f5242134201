// Adaptive layer norm: shift, scale and gate of a block come from the conditioning vector.
// Peebles & Xie 2022, arXiv 2212.09748 (adaLN-Zero); names as in diffusers' normalization layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "nn/fused_operators.h"  // what the vectors are for
#include "nn/layers.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

/// The projection "linear" [parts * C, C] of the activated conditioning [B, C] into `parts` vectors
/// [B, C].
class Modulation {
 public:
  Modulation(const WeightScope& scope, int64_t width, int64_t parts);
  std::vector<at::Tensor> operator()(const at::Tensor& activated_conditioning) const;

 private:
  int64_t parts_;
  Linear linear_;
};

}  // namespace cachedit::nn
