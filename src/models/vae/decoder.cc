#include "models/vae/decoder.h"

#include <ATen/ops/upsample_nearest2d.h>

#include <limits>

namespace cachedit::models {
namespace {

/// Each pixel becomes 2 x 2 equal ones.
at::Tensor upsample_twice(const at::Tensor& x) {
  // CUDA's channels-last kernel counts in 32 bits and refuses larger results.
  const bool too_large = x.is_cuda() && x.numel() > std::numeric_limits<int32_t>::max() / 4;
  return at::upsample_nearest2d(too_large ? x.contiguous() : x, {2 * x.size(2), 2 * x.size(3)}, 2.0,
                                2.0);
}

std::vector<UpDecoderBlock> make_up_blocks(const nn::WeightScope& scope,
                                           const AutoencoderKlConfig& config,
                                           const VaeBlockOptions& options) {
  std::vector<UpDecoderBlock> blocks;
  const std::vector<int64_t> channels(config.block_out_channels.rbegin(),
                                      config.block_out_channels.rend());
  for (size_t i = 0; i < channels.size(); ++i) {
    const UpDecoderBlock::Shape shape{.in_channels = channels[i == 0 ? 0 : i - 1],
                                      .out_channels = channels[i],
                                      .num_layers = config.layers_per_block + 1,
                                      .upsample = i + 1 < channels.size()};
    blocks.emplace_back(scope / static_cast<int64_t>(i), shape, options);
  }
  return blocks;
}

}  // namespace

UpDecoderBlock::UpDecoderBlock(const nn::WeightScope& scope, const Shape& shape,
                               const VaeBlockOptions& options) {
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    resnets_.emplace_back(scope / "resnets" / i, i == 0 ? shape.in_channels : shape.out_channels,
                          shape.out_channels, options);
  }
  if (shape.upsample) {
    upsampler_.emplace(scope / "upsamplers.0.conv", shape.out_channels, shape.out_channels,
                       nn::ConvOptions{.kernel = 3, .padding = 1});
  }
}

at::Tensor UpDecoderBlock::operator()(const at::Tensor& x, const nn::SpatialShard* shard) const {
  at::Tensor h = x;
  for (const ResnetBlock& resnet : resnets_) h = resnet(h, shard);
  return upsampler_ ? (*upsampler_)(upsample_twice(h), shard) : h;
}

VaeDecoder::VaeDecoder(const nn::WeightScope& scope, const AutoencoderKlConfig& config)
    : conv_in_(scope / "conv_in", config.latent_channels, config.block_out_channels.back(),
               {.kernel = 3, .padding = 1}),
      mid_block_(scope / "mid_block", config.block_out_channels.back(),
                 config.mid_block_add_attention, block_options(config)),
      up_blocks_(make_up_blocks(scope / "up_blocks", config, block_options(config))),
      conv_norm_out_(scope / "conv_norm_out", config.norm_num_groups,
                     config.block_out_channels.front(), kVaeNormEps),
      conv_out_(scope / "conv_out", config.block_out_channels.front(), config.out_channels,
                {.kernel = 3, .padding = 1}) {}

at::Tensor VaeDecoder::operator()(const at::Tensor& latents, const nn::SpatialShard* shard) const {
  at::Tensor h = mid_block_(conv_in_(latents, shard), shard);
  for (const UpDecoderBlock& block : up_blocks_) h = block(h, shard);
  // SiLU here whatever act_fn says, as in diffusers.
  return conv_out_(norm_and_activate(conv_norm_out_, nn::Activation::kSilu, h, shard), shard);
}

}  // namespace cachedit::models
