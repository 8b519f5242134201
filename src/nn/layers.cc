#include "nn/layers.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>

namespace cachedit::nn {
namespace {

std::optional<at::Tensor> if_defined(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

}  // namespace

Linear::Linear(const WeightScope& scope, int64_t in_features, int64_t out_features, Bias bias)
    : weight_(scope.take("weight", {out_features, in_features})) {
  if (bias == Bias::kYes) bias_ = scope.take("bias", {out_features});
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  return at::linear(x, weight_, if_defined(bias_));
}

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

at::Tensor GroupNorm::operator()(const at::Tensor& x) const {
  return at::group_norm(x, groups_, weight_, bias_, eps_);
}

Conv2d::Conv2d(const WeightScope& scope, int64_t in_channels, int64_t out_channels,
               const ConvOptions& options)
    : options_(options),
      weight_(scope.take("weight", {out_channels, in_channels, options.kernel, options.kernel})),
      bias_(scope.take("bias", {out_channels})) {}

at::Tensor Conv2d::operator()(const at::Tensor& x) const {
  return at::conv2d(x, weight_, bias_, {options_.stride, options_.stride},
                    {options_.padding, options_.padding});
}

Embedding::Embedding(const WeightScope& scope, int64_t count, int64_t width)
    : weight_(scope.take("weight", {count, width})) {}

at::Tensor Embedding::operator()(const at::Tensor& ids) const {
  return at::embedding(weight_, ids);
}

}  // namespace cachedit::nn
