#include "models/flux/double_block.h"

#include <ATen/ops/clamp.h>

#include "nn/fused_operators.h"

namespace cachedit::models {
namespace {

/// Order of the six vectors that norm1 and norm1_context project.
enum Part { kShiftAttn, kScaleAttn, kGateAttn, kShiftMlp, kScaleMlp, kGateMlp, kParts };

at::Tensor mlp_residual(const at::Tensor& x, const std::vector<at::Tensor>& mod,
                        const nn::FeedForward& ff, nn::Arena* arena) {
  const at::Tensor normed = nn::take(arena, nn::Arena::kNormed, x.sizes(), x.options());
  nn::modulated_layer_norm_out(normed, x, mod[kScaleMlp], mod[kShiftMlp]);
  return ff.add_to(x, mod[kGateMlp], normed, arena);
}

}  // namespace

FluxDoubleBlock::FluxDoubleBlock(const nn::WeightScope& scope, const FluxConfig& c)
    : head_dim_(c.attention_head_dim),
      norm1_(scope / "norm1", c.width(), kParts),
      norm1_context_(scope / "norm1_context", c.width(), kParts),
      image_qkv_(scope / "attn", kImageQkv, c.num_attention_heads, c.attention_head_dim),
      text_qkv_(scope / "attn", kTextQkv, c.num_attention_heads, c.attention_head_dim),
      to_out_(scope / "attn.to_out.0", c.width(), c.width()),
      to_add_out_(scope / "attn.to_add_out", c.width(), c.width()),
      ff_(scope / "ff", c.width(), 4 * c.width(), nn::Activation::kGeluTanh),
      ff_context_(scope / "ff_context", c.width(), 4 * c.width(), nn::Activation::kGeluTanh) {}

nn::Streams FluxDoubleBlock::forward(const nn::Streams& in, const nn::BlockContext& context) const {
  const std::vector<at::Tensor> mod = context.modulations->vectors(norm1_, context.step);
  const std::vector<at::Tensor> text_mod =
      context.modulations->vectors(norm1_context_, context.step);
  const int64_t text_tokens = in.encoder.size(1), image_tokens = in.hidden.size(1);
  const nn::RotaryEmbedding& rotary = *context.rotary;
  const auto project = [&](const QkvProjection& projection, const at::Tensor& x,
                           const std::vector<at::Tensor>& modulation,
                           const nn::RotaryEmbedding& angles, const at::Tensor& to) {
    const at::Tensor normed = nn::take(context.arena, nn::Arena::kNormed, x.sizes(), x.options());
    nn::modulated_layer_norm_out(normed, x, modulation[kScaleAttn], modulation[kShiftAttn]);
    projection.project(normed, angles, to);
  };
  at::Tensor qkv;  // [B, Nt + Ni, 3 * width], made when the first of them is asked for
  const auto views = [&] {
    if (!qkv.defined()) {
      qkv = nn::take(context.arena, nn::Arena::kQkv,
                     {in.hidden.size(0), text_tokens + image_tokens, image_qkv_.width()},
                     in.hidden.options());
      project(text_qkv_, in.encoder, text_mod, {rotary.freqs.narrow(0, 0, text_tokens)},
              qkv.narrow(1, 0, text_tokens));
      project(image_qkv_, in.hidden, mod, {rotary.freqs.narrow(0, text_tokens, image_tokens)},
              qkv.narrow(1, text_tokens, image_tokens));
    }
    return qkv_views(qkv, head_dim_);
  };
  const attention::Projections projections = {.query = [&] { return views().query; },
                                              .key = [&] { return views().key; },
                                              .value = [&] { return views().value; }};
  const at::Tensor attended = context.attention->project_and_attend(projections, {}).out.flatten(2);
  const nn::Streams out = nn::split_streams(attended, text_tokens);

  const at::Tensor hidden =
      to_out_.run({.input = out.hidden, .residual = in.hidden, .gate = mod[kGateAttn]});
  const at::Tensor encoder =
      to_add_out_.run({.input = out.encoder, .residual = in.encoder, .gate = text_mod[kGateAttn]});
  nn::Streams result{.hidden = mlp_residual(hidden, mod, ff_, context.arena),
                     .encoder = mlp_residual(encoder, text_mod, ff_context_, context.arena)};
  if (result.encoder.scalar_type() == at::kHalf) {
    // FLUX's text stream overflows fp16 in places; diffusers saturates it here, so do we.
    result.encoder = at::clamp(result.encoder, -65504, 65504);
  }
  return result;
}

}  // namespace cachedit::models
