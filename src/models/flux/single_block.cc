#include "models/flux/single_block.h"

#include <ATen/ops/clamp.h>

#include "nn/fused_operators.h"

namespace cachedit::models {
namespace {

/// Order of the three vectors that norm projects.
enum Part { kShift, kScale, kGate, kParts };

}  // namespace

FluxSingleBlock::FluxSingleBlock(const nn::WeightScope& scope, const FluxConfig& c)
    : head_dim_(c.attention_head_dim),
      norm_(scope / "norm", c.width(), kParts),
      qkv_(scope / "attn", kImageQkv, c.num_attention_heads, c.attention_head_dim),
      proj_mlp_(scope / "proj_mlp", c.width(), 4 * c.width()),
      proj_out_(scope / "proj_out", 5 * c.width(), c.width()) {}

nn::Streams FluxSingleBlock::forward(const nn::Streams& in, const nn::BlockContext& context) const {
  const at::Tensor x = nn::join_streams(in);
  const std::vector<at::Tensor> mod = context.modulations->vectors(norm_, context.step);
  const at::Tensor normed = nn::take(context.arena, nn::Arena::kNormed, x.sizes(), x.options());
  nn::modulated_layer_norm_out(normed, x, mod[kScale], mod[kShift]);
  at::Tensor qkv, mlp;
  const auto views = [&] {
    if (!qkv.defined()) {
      qkv = nn::take(context.arena, nn::Arena::kQkv, {x.size(0), x.size(1), qkv_.width()},
                     x.options());
      qkv_.project(normed, *context.rotary, qkv);
    }
    return qkv_views(qkv, head_dim_);
  };
  const attention::Projections projections = {
      .query = [&] { return views().query; },
      .key = [&] { return views().key; },
      .value = [&] { return views().value; },
      .meanwhile =
          [&] {
            mlp = nn::take(context.arena, nn::Arena::kMlp,
                           {x.size(0), x.size(1), proj_mlp_.out_features()}, x.options());
            proj_mlp_.run({.input = normed, .out = mlp, .activation = nn::Activation::kGeluTanh});
          }};
  const at::Tensor attended = context.attention->project_and_attend(projections, {}).out.flatten(2);

  at::Tensor out =
      proj_out_.run({.input = attended, .second = mlp, .residual = x, .gate = mod[kGate]});
  if (out.scalar_type() == at::kHalf) out = at::clamp(out, -65504, 65504);  // as diffusers does
  return nn::split_streams(out, in.encoder.size(1));
}

}  // namespace cachedit::models
