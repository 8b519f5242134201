#include "models/flux/single_block.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>

namespace cachedit::models {
namespace {

/// Order of the three vectors that norm projects.
enum Part { kShift, kScale, kGate, kParts };

}  // namespace

FluxSingleBlock::FluxSingleBlock(const nn::WeightScope& scope, const FluxConfig& c)
    : norm_(scope / "norm", c.width(), kParts),
      qkv_(scope / "attn", kImageQkv, c.num_attention_heads, c.attention_head_dim),
      proj_mlp_(scope / "proj_mlp", c.width(), 4 * c.width()),
      proj_out_(scope / "proj_out", 5 * c.width(), c.width()) {}

nn::Streams FluxSingleBlock::forward(const nn::Streams& in, const nn::BlockContext& context) const {
  const at::Tensor x = nn::join_streams(in);
  const std::vector<at::Tensor> mod = norm_(context.conditioning);
  const at::Tensor normed = nn::modulated_layer_norm(x, mod[kScale], mod[kShift]);
  at::Tensor mlp;
  const attention::Projections projections = {
      .query = [&] { return nn::apply_rotary(qkv_.query(normed), *context.rotary); },
      .key = [&] { return nn::apply_rotary(qkv_.key(normed), *context.rotary); },
      .value = [&] { return qkv_.value(normed); },
      .meanwhile = [&] { mlp = proj_mlp_(normed); }};
  const at::Tensor attended = context.attention->project_and_attend(projections, {}).out.flatten(2);

  // Attention and MLP write their halves of proj_out's input in place of a concatenation.
  const int64_t width = attended.size(2);
  const at::Tensor both =
      at::empty({x.size(0), x.size(1), width + mlp.size(2)}, attended.options());
  both.narrow(2, 0, width).copy_(attended);
  at::Tensor mlp_half = both.narrow(2, width, mlp.size(2));
  at::gelu_out(mlp_half, mlp, "tanh");

  at::Tensor out = nn::add_gated(x, mod[kGate], proj_out_(both));
  if (out.scalar_type() == at::kHalf) out = at::clamp(out, -65504, 65504);  // as diffusers does
  return nn::split_streams(out, in.encoder.size(1));
}

}  // namespace cachedit::models
