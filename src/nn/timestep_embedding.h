// Scalars (timestep, guidance scale) as vectors. Names as in diffusers' embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/layers.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

/// fp32 [B, width]: cos then sin of value * 10000^(-i / (width / 2)), i < width / 2. `values` [B]
/// of any dtype, `width` even (Ho et al. 2020, arXiv 2006.11239, in diffusers' order
/// flip_sin_to_cos=True, downscale_freq_shift=0).
at::Tensor sinusoidal_embedding(const at::Tensor& values, int64_t width);

/// Two linear layers "linear_1" and "linear_2" with SiLU between: [..., in] -> [..., width].
class EmbeddingMlp {
 public:
  EmbeddingMlp(const WeightScope& scope, int64_t in_features, int64_t width);
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  Linear linear_1_;
  Linear linear_2_;
};

}  // namespace cachedit::nn
