// The keys of AutoencoderKL's config.json, what is refused in them, and what does not matter.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/fail.h"
#include "models/vae/autoencoder_kl.h"

namespace cachedit::models {
namespace {

constexpr int64_t kMaxChannels = int64_t{1} << 20;

void require_range(const io::JsonConfig& json, std::string_view key, int64_t value, int64_t low,
                   int64_t high) {
  if (value >= low && value <= high) return;
  fail<ConfigError>(json.where(), key, " must be from ", low, " to ", high, ": got ", value,
                    "; correct config.json");
}

/// One block type for each entry of block_out_channels, and the only one that is implemented.
void require_block_types(io::JsonConfig& json, std::string_view key, const std::string& type,
                         size_t count) {
  const auto types = json.get_or<std::vector<std::string>>(key, {type});
  for (const std::string& name : types) {
    if (name != type) {
      fail<ConfigError>(json.where(), key, " may only hold '", type, "': got '", name,
                        "'; blocks of that type are not supported");
    }
  }
  if (types.size() != count) {
    fail<ConfigError>(json.where(), key,
                      " must have one entry for each of block_out_channels: got ", types.size(),
                      " and ", count, "; correct config.json");
  }
}

void parse_channels(io::JsonConfig& json, AutoencoderKlConfig& config) {
  config.in_channels = json.get_or("in_channels", config.in_channels);
  config.out_channels = json.get_or("out_channels", config.out_channels);
  config.latent_channels = json.get_or("latent_channels", config.latent_channels);
  config.norm_num_groups = json.get_or("norm_num_groups", config.norm_num_groups);
  config.block_out_channels = json.get_or("block_out_channels", config.block_out_channels);
  require_range(json, "in_channels", config.in_channels, 1, kMaxChannels);
  require_range(json, "out_channels", config.out_channels, 1, kMaxChannels);
  require_range(json, "latent_channels", config.latent_channels, 1, kMaxChannels);
  require_range(json, "norm_num_groups", config.norm_num_groups, 1, kMaxChannels);
  const auto levels = static_cast<int64_t>(config.block_out_channels.size());
  if (levels < 1 || levels > 10) {
    fail<ConfigError>(json.where(), "block_out_channels must have 1 to 10 entries: got ", levels,
                      "; correct config.json");
  }
  for (const int64_t channels : config.block_out_channels) {
    require_range(json, "block_out_channels", channels, 1, kMaxChannels);
    if (channels % config.norm_num_groups != 0) {
      fail<ConfigError>(json.where(),
                        "every entry of block_out_channels must be a multiple of norm_num_groups: "
                        "got ",
                        channels, " and ", config.norm_num_groups, "; correct config.json");
    }
  }
}

/// The names that diffusers' models know, in any case, without 'mish'.
nn::Activation parse_act_fn(io::JsonConfig& json) {
  std::string name = json.get_or<std::string>("act_fn", "silu");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  for (const char* known : {"silu", "swish", "gelu", "relu"}) {
    if (name == known) return nn::parse_activation(name, json.where());
  }
  fail<ConfigError>(json.where(), "act_fn must be one of silu, swish, gelu, relu: got '", name,
                    "'; others are not supported");
}

/// Old checkpoints give [height, width]; diffusers takes the first for its tiles.
int64_t parse_sample_size(io::JsonConfig& json, int64_t fallback) {
  try {
    return json.get_or("sample_size", fallback);
  } catch (const ConfigError&) {
    const auto sides = json.get<std::vector<int64_t>>("sample_size");
    if (sides.size() == 2) return sides.front();
    fail<ConfigError>(json.where(), "sample_size must be a number or two: got ", sides.size(),
                      " entries; correct config.json");
  }
}

void parse_scaling(io::JsonConfig& json, AutoencoderKlConfig& config) {
  if (json.contains("scaling_factor")) config.scaling_factor = json.get<double>("scaling_factor");
  if (!std::isfinite(config.scaling_factor) || config.scaling_factor == 0) {
    fail<ConfigError>(json.where(), "scaling_factor must be a number other than 0: got ",
                      config.scaling_factor, "; correct config.json");
  }
  config.shift_factor = json.get_or("shift_factor", config.shift_factor);
  if (!std::isfinite(config.shift_factor)) {
    fail<ConfigError>(json.where(), "shift_factor must be finite: got ", config.shift_factor,
                      "; correct config.json");
  }
  for (const char* key : {"latents_mean", "latents_std"}) {
    if (json.find<std::vector<double>>(key)) {
      fail<ConfigError>(json.where(), key,
                        " must be null: got a list; latents normalized by channel are not "
                        "supported for this class");
    }
  }
}

}  // namespace

AutoencoderKlConfig AutoencoderKlConfig::parse(io::JsonConfig& json) {
  json.require_class({"AutoencoderKL"});
  AutoencoderKlConfig config;
  parse_channels(json, config);
  const size_t levels = config.block_out_channels.size();
  require_block_types(json, "down_block_types", "DownEncoderBlock2D", levels);
  require_block_types(json, "up_block_types", "UpDecoderBlock2D", levels);
  config.layers_per_block = json.get_or("layers_per_block", config.layers_per_block);
  require_range(json, "layers_per_block", config.layers_per_block, 1, 64);
  config.act_fn = parse_act_fn(json);
  config.sample_size = parse_sample_size(json, config.sample_size);
  require_range(json, "sample_size", config.sample_size, 1, int64_t{1} << 20);
  parse_scaling(json, config);
  config.use_quant_conv = json.get_or("use_quant_conv", config.use_quant_conv);
  config.use_post_quant_conv = json.get_or("use_post_quant_conv", config.use_post_quant_conv);
  config.mid_block_add_attention =
      json.get_or("mid_block_add_attention", config.mid_block_add_attention);
  // force_upcast asks SDXL's pipelines, not FLUX's, to run a half-precision VAE in fp32.
  json.ignore({"force_upcast"});
  json.finish();
  return config;
}

}  // namespace cachedit::models
