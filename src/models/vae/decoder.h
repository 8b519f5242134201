// The VAE's decoder: the middle block, then residual blocks at rising resolution. Names as in
// diffusers' Decoder.
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

/// One resolution: residual blocks, then, on all but the last, nearest upsampling by 2 and a
/// convolution.
class UpDecoderBlock {
 public:
  struct Shape {
    int64_t in_channels;
    int64_t out_channels;
    int64_t num_layers;
    bool upsample;
  };

  UpDecoderBlock(const nn::WeightScope& scope, const Shape& shape, const VaeBlockOptions& options);
  at::Tensor operator()(const at::Tensor& x, const nn::SpatialShard* shard) const;

 private:
  std::vector<ResnetBlock> resnets_;
  std::optional<nn::Conv2d> upsampler_;
};

class VaeDecoder {
 public:
  VaeDecoder(const nn::WeightScope& scope, const AutoencoderKlConfig& config);
  /// [B, latent_channels, h, w] -> [B, out_channels, h*f, w*f]
  at::Tensor operator()(const at::Tensor& latents, const nn::SpatialShard* shard) const;

 private:
  nn::Conv2d conv_in_;
  VaeMidBlock mid_block_;
  std::vector<UpDecoderBlock> up_blocks_;
  nn::GroupNorm conv_norm_out_;
  nn::Conv2d conv_out_;
};

}  // namespace cachedit::models
