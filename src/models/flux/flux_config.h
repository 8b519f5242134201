// The configuration of diffusers' FluxTransformer2DModel.
#pragma once

#include <cstdint>
#include <vector>

#include "io/json_config.h"

namespace cachedit::models {

struct FluxConfig {
  int64_t patch_size = 1;
  int64_t in_channels = 64;
  int64_t out_channels = 64;
  int64_t num_layers = 19;
  int64_t num_single_layers = 38;
  int64_t attention_head_dim = 128;
  int64_t num_attention_heads = 24;
  int64_t joint_attention_dim = 4096;
  int64_t pooled_projection_dim = 768;
  bool guidance_embeds = false;
  std::vector<int64_t> axes_dims_rope = {16, 56, 56};

  int64_t width() const { return num_attention_heads * attention_head_dim; }

  /// Throws ConfigError for another class, values out of range, or unknown keys.
  static FluxConfig parse(io::JsonConfig& json);
};

}  // namespace cachedit::models
