#include "models/vae/resnet_block.h"

#include <ATen/ops/silu.h>

#include "models/vae/autoencoder_kl.h"

namespace cachedit::models {

VaeBlockOptions block_options(const AutoencoderKlConfig& config) {
  return {.norm_num_groups = config.norm_num_groups, .act_fn = config.act_fn};
}

at::Tensor norm_and_activate(const nn::GroupNorm& norm, nn::Activation activation,
                             const at::Tensor& x, const nn::SpatialShard* shard) {
  at::Tensor h = norm(x, shard);
  if (activation == nn::Activation::kSilu) return at::silu_(h);
  return nn::activate(activation, h);
}

ResnetBlock::ResnetBlock(const nn::WeightScope& scope, int64_t in_channels, int64_t out_channels,
                         const VaeBlockOptions& options)
    : activation_(options.act_fn),
      norm1_(scope / "norm1", options.norm_num_groups, in_channels, kVaeNormEps),
      conv1_(scope / "conv1", in_channels, out_channels, {.kernel = 3, .padding = 1}),
      norm2_(scope / "norm2", options.norm_num_groups, out_channels, kVaeNormEps),
      conv2_(scope / "conv2", out_channels, out_channels, {.kernel = 3, .padding = 1}) {
  if (in_channels != out_channels) {
    conv_shortcut_.emplace(scope / "conv_shortcut", in_channels, out_channels,
                           nn::ConvOptions{.kernel = 1});
  }
}

at::Tensor ResnetBlock::operator()(const at::Tensor& x, const nn::SpatialShard* shard) const {
  at::Tensor h = conv1_(norm_and_activate(norm1_, activation_, x, shard), shard);
  h = conv2_(norm_and_activate(norm2_, activation_, h, shard), shard);
  return h.add_(conv_shortcut_ ? (*conv_shortcut_)(x) : x);
}

}  // namespace cachedit::models
