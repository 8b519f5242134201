// The convolutional VAE of latent diffusion (Rombach et al. 2021, arXiv 2112.10752), names as in
// diffusers' AutoencoderKL.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "io/json_config.h"
#include "io/weight_store.h"
#include "nn/activation.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

struct AutoencoderKlConfig {
  int64_t in_channels = 3;
  int64_t out_channels = 3;
  std::vector<int64_t> block_out_channels = {64};
  int64_t layers_per_block = 1;
  nn::Activation act_fn = nn::Activation::kSilu;
  int64_t latent_channels = 4;
  int64_t norm_num_groups = 32;
  int64_t sample_size = 32;
  double scaling_factor = 0.18215;
  double shift_factor = 0.0;
  bool use_quant_conv = true;
  bool use_post_quant_conv = true;
  bool mid_block_add_attention = true;

  /// Pixels per latent position and side: 2^(levels - 1).
  int64_t scale_factor() const { return int64_t{1} << (block_out_channels.size() - 1); }

  /// Throws ConfigError for another class, values out of range, or unknown keys.
  static AutoencoderKlConfig parse(io::JsonConfig& json);
};

/// How a call works through its input; the defaults are diffusers'.
struct VaeTiling {
  bool tiling = false;   ///< spatial tiles with blended overlaps, when larger than a tile
  bool slicing = false;  ///< one batch entry after the other
  /// Side in pixels, 0: the config's sample_size. Floored to whole latent positions.
  int64_t tile_sample_min_size = 0;
  double tile_overlap_factor = 0.25;  ///< of a tile, in [0, 1)
};

/// Mean and log-variance [B, latent_channels, H/f, W/f] of the encoder's Gaussian.
struct DiagonalGaussian {
  at::Tensor mean;
  at::Tensor logvar;  ///< clamped to [-30, 20]
  /// mean + std * noise, the noise drawn as diffusers' randn_tensor draws it.
  at::Tensor sample(at::Generator& generator) const;
};

class AutoencoderKl {
 public:
  /// Throws WeightError listing every missing, wrong-shaped and left-over tensor.
  AutoencoderKl(const AutoencoderKlConfig& config, const io::WeightStore& store,
                const nn::WeightOptions& options);
  ~AutoencoderKl();
  AutoencoderKl(AutoencoderKl&&) noexcept;

  /// Pixels [B, 3, H, W] in [-1, 1] -> the latent's distribution, before scaling and shift.
  /// Throws InputError unless H and W are multiples of scale_factor(), or for bad tiling options.
  ///
  /// The ranks of `group`, where there are several, call encode() and decode() together with the
  /// same arguments, compute a strip of rows each, and all get the whole result, which is one
  /// process's up to rounding. Tiling and slicing are refused with it (InputError).
  DiagonalGaussian encode(const at::Tensor& pixels, const VaeTiling& tiling = {},
                          comm::Communicator* group = nullptr) const;

  /// Latents [B, latent_channels, h, w], already unscaled -> pixels [B, 3, h*f, w*f], of any
  /// strides (channels last as a rule). Throws InputError for bad tiling options.
  at::Tensor decode(const at::Tensor& latents, const VaeTiling& tiling = {},
                    comm::Communicator* group = nullptr) const;

  const AutoencoderKlConfig& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  int64_t parameter_bytes() const { return parameter_bytes_; }

 private:
  struct Layers;
  AutoencoderKlConfig config_;
  at::ScalarType dtype_;
  int64_t parameter_bytes_;
  std::unique_ptr<Layers> layers_;
};

}  // namespace cachedit::models
