#include "models/vae/encoder.h"

#include <ATen/ops/constant_pad_nd.h>

namespace cachedit::models {
namespace {

std::vector<DownEncoderBlock> make_down_blocks(const nn::WeightScope& scope,
                                               const AutoencoderKlConfig& config,
                                               const VaeBlockOptions& options) {
  std::vector<DownEncoderBlock> blocks;
  const std::vector<int64_t>& channels = config.block_out_channels;
  for (size_t i = 0; i < channels.size(); ++i) {
    const DownEncoderBlock::Shape shape{.in_channels = channels[i == 0 ? 0 : i - 1],
                                        .out_channels = channels[i],
                                        .num_layers = config.layers_per_block,
                                        .downsample = i + 1 < channels.size()};
    blocks.emplace_back(scope / static_cast<int64_t>(i), shape, options);
  }
  return blocks;
}

}  // namespace

DownEncoderBlock::DownEncoderBlock(const nn::WeightScope& scope, const Shape& shape,
                                   const VaeBlockOptions& options) {
  for (int64_t i = 0; i < shape.num_layers; ++i) {
    resnets_.emplace_back(scope / "resnets" / i, i == 0 ? shape.in_channels : shape.out_channels,
                          shape.out_channels, options);
  }
  if (shape.downsample) {
    downsampler_.emplace(scope / "downsamplers.0.conv", shape.out_channels, shape.out_channels,
                         nn::ConvOptions{.kernel = 3, .stride = 2});
  }
}

at::Tensor DownEncoderBlock::operator()(const at::Tensor& x, const nn::SpatialShard* shard) const {
  at::Tensor h = x;
  for (const ResnetBlock& resnet : resnets_) h = resnet(h, shard);
  if (!downsampler_) return h;
  nn::Halo halo;
  if (shard != nullptr) halo = shard->start_halo(h, nn::HaloSides::kBelow);
  // One zero column on the right and one zero row below only: an even side halves exactly. In
  // strips, which have even numbers of rows here, that row is the next strip's first.
  at::Tensor padded = at::constant_pad_nd(h, {0, 1, 0, 1});
  halo.wait();
  if (halo.below.defined())
    padded.narrow(2, h.size(2), 1).narrow(3, 0, h.size(3)).copy_(halo.below);
  return (*downsampler_)(padded);
}

VaeEncoder::VaeEncoder(const nn::WeightScope& scope, const AutoencoderKlConfig& config)
    : conv_in_(scope / "conv_in", config.in_channels, config.block_out_channels.front(),
               {.kernel = 3, .padding = 1}),
      down_blocks_(make_down_blocks(scope / "down_blocks", config, block_options(config))),
      mid_block_(scope / "mid_block", config.block_out_channels.back(),
                 config.mid_block_add_attention, block_options(config)),
      conv_norm_out_(scope / "conv_norm_out", config.norm_num_groups,
                     config.block_out_channels.back(), kVaeNormEps),
      conv_out_(scope / "conv_out", config.block_out_channels.back(), 2 * config.latent_channels,
                {.kernel = 3, .padding = 1}) {}

at::Tensor VaeEncoder::operator()(const at::Tensor& pixels, const nn::SpatialShard* shard) const {
  at::Tensor h = conv_in_(pixels, shard);
  for (const DownEncoderBlock& block : down_blocks_) h = block(h, shard);
  h = mid_block_(h, shard);
  // SiLU here whatever act_fn says, as in diffusers.
  return conv_out_(norm_and_activate(conv_norm_out_, nn::Activation::kSilu, h, shard), shard);
}

}  // namespace cachedit::models
