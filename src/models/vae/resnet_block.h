// The residual block of the VAE: two 3x3 convolutions, each after a group norm and an activation.
// Names as in diffusers' ResnetBlock2D, which has a time embedding that a VAE does not use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "nn/activation.h"
#include "nn/layers.h"
#include "nn/spatial.h"

namespace cachedit::models {

struct AutoencoderKlConfig;

/// Every norm of the VAE uses this, whatever its config says.
inline constexpr double kVaeNormEps = 1e-6;

/// What all blocks of one VAE share.
struct VaeBlockOptions {
  int64_t norm_num_groups = 32;
  nn::Activation act_fn = nn::Activation::kSilu;
};

VaeBlockOptions block_options(const AutoencoderKlConfig& config);

// With a `shard`, what layers and blocks get and give is this rank's strip of the picture's rows.

/// activation(norm(x)), reusing the norm's result where the activation can work in place.
at::Tensor norm_and_activate(const nn::GroupNorm& norm, nn::Activation activation,
                             const at::Tensor& x, const nn::SpatialShard* shard);

class ResnetBlock {
 public:
  ResnetBlock(const nn::WeightScope& scope, int64_t in_channels, int64_t out_channels,
              const VaeBlockOptions& options);
  /// [B, in_channels, H, W] -> [B, out_channels, H, W]
  at::Tensor operator()(const at::Tensor& x, const nn::SpatialShard* shard) const;

 private:
  nn::Activation activation_;
  nn::GroupNorm norm1_;
  nn::Conv2d conv1_;
  nn::GroupNorm norm2_;
  nn::Conv2d conv2_;
  std::optional<nn::Conv2d> conv_shortcut_;  // only where the channel counts differ
};

}  // namespace cachedit::models
