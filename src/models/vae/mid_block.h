// The middle of the VAE's encoder and decoder, at the latent's resolution: two residual blocks, and
// between them, where the config wants it, self-attention over all positions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "models/vae/resnet_block.h"
#include "nn/layers.h"
#include "nn/spatial.h"

namespace cachedit::models {

/// Self-attention with one head over the H * W positions, plus its input. In strips, queries stay
/// and keys and values are collected from all ranks.
class VaeAttention {
 public:
  /// Checkpoints from before diffusers 0.15 spell the layers query, key, value and proj_attn.
  VaeAttention(const nn::WeightScope& scope, int64_t channels, const VaeBlockOptions& options);
  /// [B, channels, H, W] -> the same shape
  at::Tensor operator()(const at::Tensor& x, const nn::SpatialShard* shard) const;

 private:
  nn::GroupNorm group_norm_;
  nn::Linear to_q_;
  nn::Linear to_k_;
  nn::Linear to_v_;
  nn::Linear to_out_;
};

class VaeMidBlock {
 public:
  VaeMidBlock(const nn::WeightScope& scope, int64_t channels, bool add_attention,
              const VaeBlockOptions& options);
  /// [B, channels, H, W] -> the same shape
  at::Tensor operator()(const at::Tensor& x, const nn::SpatialShard* shard) const;

 private:
  ResnetBlock resnet0_;
  std::optional<VaeAttention> attention_;
  ResnetBlock resnet1_;
};

}  // namespace cachedit::models
