#include "models/vae/autoencoder_kl.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/randn.h>

#include "base/fail.h"
#include "models/vae/decoder.h"
#include "models/vae/encoder.h"
#include "models/vae/strips.h"
#include "models/vae/tiling.h"

namespace cachedit::models {
namespace {

std::optional<nn::Conv2d> pointwise(const nn::WeightScope& scope, int64_t channels, bool used) {
  if (!used) return std::nullopt;
  return nn::Conv2d(scope, channels, channels, {.kernel = 1});
}

/// `what` names the input in error texts.
void check_input(const at::Tensor& x, const char* what, int64_t channels) {
  const std::string where = c10::str("vae ", what);
  if (!x.defined() || x.dim() != 4) {
    fail<InputError>(where, "must be [batch, channels, height, width]: got ",
                     x.defined() ? c10::str("shape ", x.sizes()) : "no tensor");
  }
  if (x.size(1) != channels) {
    fail<InputError>(where, "must have ", channels, " channels: got shape ", x.sizes());
  }
  if (x.numel() == 0) fail<InputError>(where, "must not be empty: got shape ", x.sizes());
  if (!at::isFloatingType(x.scalar_type())) {
    fail<InputError>(where, "must be floating-point numbers: got ", x.scalar_type(),
                     "; convert them first");
  }
}

/// Whether a call is shared out; refuses what cannot be at the same time.
bool shared_out(const comm::Communicator* group, const VaeTiling& tiling, const char* what) {
  if (group == nullptr || group->size() == 1) return false;
  if (tiling.tiling || tiling.slicing) {
    fail<InputError>(c10::str("vae ", what), tiling.tiling ? "tiling" : "slicing",
                     " cannot be combined with a VAE that several ranks share: got both, with ",
                     group->size(), " ranks; leave one of them out");
  }
  return true;
}

}  // namespace

struct AutoencoderKl::Layers {
  Layers(const AutoencoderKlConfig& config, const nn::WeightScope& root)
      : encoder(root / "encoder", config),
        decoder(root / "decoder", config),
        quant_conv(
            pointwise(root / "quant_conv", 2 * config.latent_channels, config.use_quant_conv)),
        post_quant_conv(pointwise(root / "post_quant_conv", config.latent_channels,
                                  config.use_post_quant_conv)),
        device(root.device()) {}

  at::Tensor encode(const at::Tensor& pixels, const nn::SpatialShard* shard = nullptr) const {
    at::Tensor moments = encoder(pixels, shard);
    return quant_conv ? (*quant_conv)(moments) : moments;
  }
  at::Tensor decode(const at::Tensor& latents, const nn::SpatialShard* shard = nullptr) const {
    return decoder(post_quant_conv ? (*post_quant_conv)(latents) : latents, shard);
  }
  /// In the component's dtype, and channels last: on 2 cores with AVX-512 a decode by the demo
  /// model then takes 16 to 25 % less time than with planes (fp32 and bf16, 128 and 512 pixels),
  /// one at FLUX.1's width about 10 % less. Weights laid out likewise made no difference beyond
  /// noise and would cost a copy of each.
  at::Tensor prepare(const at::Tensor& x, at::ScalarType dtype) const {
    return x.to(device, dtype).contiguous(at::MemoryFormat::ChannelsLast);
  }

  VaeEncoder encoder;
  VaeDecoder decoder;
  std::optional<nn::Conv2d> quant_conv;
  std::optional<nn::Conv2d> post_quant_conv;
  at::Device device;
};

AutoencoderKl::AutoencoderKl(const AutoencoderKlConfig& config, const io::WeightStore& store,
                             const nn::WeightOptions& options)
    : config_(config) {
  const nn::WeightLoader loader(store, options);
  const nn::WeightScope root = loader.root();
  dtype_ = root.dtype();
  layers_ = std::make_unique<Layers>(config_, root);
  loader.finish();
  parameter_bytes_ = loader.bytes();
}

AutoencoderKl::~AutoencoderKl() = default;
AutoencoderKl::AutoencoderKl(AutoencoderKl&&) noexcept = default;

DiagonalGaussian AutoencoderKl::encode(const at::Tensor& pixels, const VaeTiling& tiling,
                                       comm::Communicator* group) const {
  check_input(pixels, "encode", config_.in_channels);
  const int64_t scale = config_.scale_factor();
  if (pixels.size(2) % scale != 0 || pixels.size(3) % scale != 0) {
    fail<InputError>("vae encode", "height and width must be multiples of ", scale, ": got ",
                     pixels.size(2), " x ", pixels.size(3), "; resize or crop the image");
  }
  TileFunction run = [this](const at::Tensor& x) { return layers_->encode(x); };
  if (tiling.tiling) {
    const TileGrid grid = plan_tiles(tiling, config_.sample_size, scale);
    run = [run, grid](const at::Tensor& x) { return tiled_encode(x, run, grid); };
  }
  at::Tensor moments;
  if (shared_out(group, tiling, "encode")) {
    const auto run_strip = [this](const at::Tensor& strip, const nn::SpatialShard& shard) {
      return layers_->encode(layers_->prepare(strip, dtype_), &shard);
    };
    const int64_t rows = pixels.size(2) / scale;
    moments = in_strips(pixels, run_strip,
                        {.rows = rows,
                         .result_shape = {pixels.size(0), 2 * config_.latent_channels, rows,
                                          pixels.size(3) / scale},
                         .result_options = at::TensorOptions(dtype_).device(layers_->device)},
                        *group);
  } else {
    const at::Tensor x = layers_->prepare(pixels, dtype_);
    moments = tiling.slicing ? sliced(x, run) : run(x);
  }
  // Planes again, so that what is drawn and computed from the moments has diffusers' element order.
  moments = moments.contiguous();
  return {.mean = moments.narrow(1, 0, config_.latent_channels),
          .logvar = at::clamp(moments.narrow(1, config_.latent_channels, config_.latent_channels),
                              -30.0, 20.0)};
}

at::Tensor AutoencoderKl::decode(const at::Tensor& latents, const VaeTiling& tiling,
                                 comm::Communicator* group) const {
  check_input(latents, "decode", config_.latent_channels);
  if (shared_out(group, tiling, "decode")) {
    const auto run_strip = [this](const at::Tensor& strip, const nn::SpatialShard& shard) {
      return layers_->decode(layers_->prepare(strip, dtype_), &shard);
    };
    const int64_t scale = config_.scale_factor();
    return in_strips(latents, run_strip,
                     {.rows = latents.size(2),
                      .result_shape = {latents.size(0), config_.out_channels,
                                       latents.size(2) * scale, latents.size(3) * scale},
                      .result_options = at::TensorOptions(dtype_).device(layers_->device)},
                     *group);
  }
  TileFunction run = [this](const at::Tensor& x) { return layers_->decode(x); };
  if (tiling.tiling) {
    const TileGrid grid = plan_tiles(tiling, config_.sample_size, config_.scale_factor());
    run = [run, grid](const at::Tensor& x) { return tiled_decode(x, run, grid); };
  }
  const at::Tensor x = layers_->prepare(latents, dtype_);
  return tiling.slicing ? sliced(x, run) : run(x);
}

at::Tensor DiagonalGaussian::sample(at::Generator& generator) const {
  if (generator.device().is_cuda() && !mean.is_cuda()) {
    fail<InputError>("vae sample", "a generator on ", generator.device(),
                     " cannot draw for a tensor on ", mean.device(), "; use one on the CPU");
  }
  const at::Tensor noise =
      at::randn(mean.sizes(), generator, mean.options().device(generator.device()))
          .to(mean.device());
  return mean + at::exp(0.5 * logvar) * noise;
}

}  // namespace cachedit::models
