#include "nn/layers.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros_like.h>

#include "base/fail.h"

namespace cachedit::nn {
namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

}  // namespace

LayerNorm::LayerNorm(const WeightScope& scope, int64_t width, double eps)
    : width_(width),
      eps_(eps),
      weight_(scope.take("weight", {width})),
      bias_(scope.take("bias", {width})) {}

at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, {width_}, if_defined(weight_), if_defined(bias_), eps_);
}

RmsNorm::RmsNorm(const WeightScope& scope, int64_t width, double eps)
    : eps_(eps), weight_(scope.take("weight", {width})) {}

at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  return at::rms_norm(x, weight_.sizes(), weight_, eps_);
}

GroupNorm::GroupNorm(const WeightScope& scope, int64_t groups, int64_t channels, double eps)
    : groups_(groups),
      eps_(eps),
      weight_(scope.take("weight", {channels})),
      bias_(scope.take("bias", {channels})) {}

at::Tensor GroupNorm::operator()(const at::Tensor& x, const SpatialShard* shard) const {
  if (shard != nullptr) return shard->group_norm(x, groups_, weight_, bias_, eps_);
  return at::group_norm(x, groups_, weight_, bias_, eps_);
}

Conv2d::Conv2d(const WeightScope& scope, int64_t in_channels, int64_t out_channels,
               const ConvOptions& options)
    : options_(options),
      weight_(scope.take("weight", {out_channels, in_channels, options.kernel, options.kernel})),
      bias_(scope.take("bias", {out_channels})) {}

at::Tensor Conv2d::operator()(const at::Tensor& x, const SpatialShard* shard) const {
  if (shard != nullptr) return convolve_strip(x, *shard);
  return convolve(x, options_.padding);
}

at::Tensor Conv2d::convolve(const at::Tensor& x, int64_t padding_above_and_below) const {
  return at::conv2d(x, weight_, bias_, {options_.stride, options_.stride},
                    {padding_above_and_below, options_.padding});
}

at::Tensor Conv2d::convolve_strip(const at::Tensor& x, const SpatialShard& shard) const {
  if (options_.kernel == 1 && options_.stride == 1 && options_.padding == 0) return convolve(x, 0);
  if (options_.kernel != 3 || options_.stride != 1 || options_.padding != 1) {
    fail<UnsupportedError>("conv2d",
                           "strips need a kernel of 1, or of 3 with stride and padding 1: got "
                           "kernel ",
                           options_.kernel, ", stride ", options_.stride, ", padding ",
                           options_.padding);
  }
  Halo halo = shard.start_halo(x, HaloSides::kBoth);
  const int64_t rows = x.size(2);
  if (rows == 1) {
    halo.wait();
    const at::Tensor zeros = at::zeros_like(x);
    return convolve(at::cat({halo.above.defined() ? halo.above : zeros, x,
                             halo.below.defined() ? halo.below : zeros},
                            2),
                    0);
  }
  // While the neighbours' rows travel, as if there were none: right but for the outermost rows. To
  // compute these again costs less than a copy of the strip with its halo.
  at::Tensor y = convolve(x, 1);
  halo.wait();
  if (halo.above.defined()) {
    y.narrow(2, 0, 1).copy_(convolve(at::cat({halo.above, x.narrow(2, 0, 2)}, 2), 0));
  }
  if (halo.below.defined()) {
    y.narrow(2, rows - 1, 1).copy_(convolve(at::cat({x.narrow(2, rows - 2, 2), halo.below}, 2), 0));
  }
  return y;
}

Embedding::Embedding(const WeightScope& scope, int64_t count, int64_t width)
    : weight_(scope.take("weight", {count, width})) {}

at::Tensor Embedding::operator()(const at::Tensor& ids) const {
  return at::embedding(weight_, ids);
}

}  // namespace cachedit::nn
