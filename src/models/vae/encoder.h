// The VAE's encoder: residual blocks at falling resolution, then the middle block. Names as in
// diffusers' Encoder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/vae/autoencoder_kl.h"
#include "models/vae/mid_block.h"
#include "models/vae/resnet_block.h"
#include "nn/layers.h"

namespace cachedit::models {

/// One resolution: residual blocks, then, on all but the last, a convolution of stride 2.
class DownEncoderBlock {
 public:
  struct Shape {
    int64_t in_channels;
    int64_t out_channels;
    int64_t num_layers;
    bool downsample;
  };

  DownEncoderBlock(const nn::WeightScope& scope, const Shape& shape,
                   const VaeBlockOptions& options);
  at::Tensor operator()(const at::Tensor& x, const nn::SpatialShard* shard) const;

 private:
  std::vector<ResnetBlock> resnets_;
  std::optional<nn::Conv2d> downsampler_;
};

class VaeEncoder {
 public:
  VaeEncoder(const nn::WeightScope& scope, const AutoencoderKlConfig& config);
  /// [B, in_channels, H, W] -> moments [B, 2 * latent_channels, H/f, W/f]
  at::Tensor operator()(const at::Tensor& pixels, const nn::SpatialShard* shard) const;

 private:
  nn::Conv2d conv_in_;
  std::vector<DownEncoderBlock> down_blocks_;
  VaeMidBlock mid_block_;
  nn::GroupNorm conv_norm_out_;
  nn::Conv2d conv_out_;
};

}  // namespace cachedit::models
