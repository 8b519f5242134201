// The common layers. All are inference-only and const; tensors are in the component's dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "nn/linear.h"
#include "nn/spatial.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

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
  /// With `shard`, x is this rank's strip of rows and the statistics are the whole picture's.
  at::Tensor operator()(const at::Tensor& x, const SpatialShard* shard = nullptr) const;

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
  /// With `shard`, x is this rank's strip of rows, and so is the result. The kernel must be 1, or 3
  /// with stride and padding 1.
  at::Tensor operator()(const at::Tensor& x, const SpatialShard* shard = nullptr) const;

 private:
  at::Tensor convolve(const at::Tensor& x, int64_t padding_above_and_below) const;
  at::Tensor convolve_strip(const at::Tensor& x, const SpatialShard& shard) const;

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
