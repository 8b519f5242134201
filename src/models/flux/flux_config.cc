#include "models/flux/flux_config.h"

#include <numeric>

#include "base/fail.h"
#include "models/quantization_method.h"

namespace cachedit::models {
namespace {

void check_ranges(const FluxConfig& c, const std::string& where) {
  const std::pair<const char*, int64_t> positive[] = {
      {"patch_size", c.patch_size},
      {"in_channels", c.in_channels},
      {"out_channels", c.out_channels},
      {"attention_head_dim", c.attention_head_dim},
      {"num_attention_heads", c.num_attention_heads},
      {"joint_attention_dim", c.joint_attention_dim},
      {"pooled_projection_dim", c.pooled_projection_dim}};
  constexpr int64_t kMax = int64_t{1} << 20;
  for (const auto& [key, value] : positive) {
    if (value < 1 || value > kMax) {
      fail<ConfigError>(where, key, " must lie in 1..", kMax, ": got ", value);
    }
  }
  const std::pair<const char*, int64_t> counts[] = {{"num_layers", c.num_layers},
                                                    {"num_single_layers", c.num_single_layers}};
  constexpr int64_t kMaxLayers = 4096;
  for (const auto& [key, value] : counts) {
    if (value < 0 || value > kMaxLayers) {
      fail<ConfigError>(where, key, " must lie in 0..", kMaxLayers, ": got ", value);
    }
  }
  if (c.patch_size != 1) {
    fail<ConfigError>(where, "patch_size must be 1, as in every FLUX.1 checkpoint: got ",
                      c.patch_size);
  }
}

void check_rotary(const FluxConfig& c, const std::string& where) {
  const std::vector<int64_t>& axes = c.axes_dims_rope;
  bool even = true;
  for (const int64_t dim : axes) even &= dim > 0 && dim % 2 == 0;
  if (axes.size() != 3 || !even ||
      std::accumulate(axes.begin(), axes.end(), int64_t{0}) != c.attention_head_dim) {
    fail<ConfigError>(where,
                      "axes_dims_rope must be three even numbers that add up to "
                      "attention_head_dim: got ",
                      axes, " and ", c.attention_head_dim);
  }
}

}  // namespace

FluxConfig FluxConfig::parse(io::JsonConfig& json) {
  json.require_class({"FluxTransformer2DModel"});
  FluxConfig c;
  c.patch_size = json.get_or<int64_t>("patch_size", c.patch_size);
  c.in_channels = json.get_or<int64_t>("in_channels", c.in_channels);
  c.out_channels = json.get_or<int64_t>("out_channels", c.in_channels);
  c.num_layers = json.get_or<int64_t>("num_layers", c.num_layers);
  c.num_single_layers = json.get_or<int64_t>("num_single_layers", c.num_single_layers);
  c.attention_head_dim = json.get_or<int64_t>("attention_head_dim", c.attention_head_dim);
  c.num_attention_heads = json.get_or<int64_t>("num_attention_heads", c.num_attention_heads);
  c.joint_attention_dim = json.get_or<int64_t>("joint_attention_dim", c.joint_attention_dim);
  c.pooled_projection_dim = json.get_or<int64_t>("pooled_projection_dim", c.pooled_projection_dim);
  c.guidance_embeds = json.get_or<bool>("guidance_embeds", c.guidance_embeds);
  c.axes_dims_rope = json.get_or<std::vector<int64_t>>("axes_dims_rope", c.axes_dims_rope);
  check_quantization_method(json);
  json.finish();
  check_ranges(c, json.where());
  check_rotary(c, json.where());
  return c;
}

}  // namespace cachedit::models
