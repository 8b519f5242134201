// The common layers. All are inference-only and const; tensors are in the component's dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "nn/weight_scope.h"

namespace cachedit::nn {

enum class Bias { kYes, kNo };

/// y = x W^T + b. Weight "weight" [out, in], "bias" [out].
class Linear {
 public:
  Linear(const WeightScope& scope, int64_t in_features, int64_t out_features,
         Bias bias = Bias::kYes);
  /// [..., in] -> [..., out]
  at::Tensor operator()(const at::Tensor& x) const;
  int64_t in_features() const { return weight_.size(1); }
  int64_t out_features() const { return weight_.size(0); }
  at::ScalarType dtype() const { return weight_.scalar_type(); }

 private:
  at::Tensor weight_;
  at::Tensor bias_;  // undefined without bias
};

/// Normalizes the last dimension. Without affine parameters where built from a width alone.
class LayerNorm {
 public:
  LayerNorm(const WeightScope& scope, int64_t width, double eps);
  LayerNorm(int64_t width, double eps) : width_(width), eps_(eps) {}
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  int64_t width_;
  double eps_;
  at::Tensor weight_;
  at::Tensor bias_;
};

/// x / rms(x) * weight over the last dimension, as torch.nn.RMSNorm computes it.
class RmsNorm {
 public:
  RmsNorm(const WeightScope& scope, int64_t width, double eps);
  at::Tensor operator()(const at::Tensor& x) const;
  const at::Tensor& weight() const { return weight_; }
  double eps() const { return eps_; }

 private:
  double eps_;
  at::Tensor weight_;
};

/// Normalizes [B, C, H, W] over groups of channels.
class GroupNorm {
 public:
  GroupNorm(const WeightScope& scope, int64_t groups, int64_t channels, double eps);
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  int64_t groups_;
  double eps_;
  at::Tensor weight_;
  at::Tensor bias_;
};

struct ConvOptions {
  int64_t kernel = 3;
  int64_t stride = 1;
  int64_t padding = 0;
};

/// [B, Cin, H, W] -> [B, Cout, H', W'], square kernel, with bias.
class Conv2d {
 public:
  Conv2d(const WeightScope& scope, int64_t in_channels, int64_t out_channels,
         const ConvOptions& options);
  at::Tensor operator()(const at::Tensor& x) const;

 private:
  ConvOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
};

/// Rows of "weight" [count, width] looked up by int64 ids [...] -> [..., width].
class Embedding {
 public:
  Embedding(const WeightScope& scope, int64_t count, int64_t width);
  at::Tensor operator()(const at::Tensor& ids) const;
  int64_t count() const { return weight_.size(0); }

 private:
  at::Tensor weight_;
};

}  // namespace cachedit::nn
