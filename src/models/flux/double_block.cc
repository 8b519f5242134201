#include "models/flux/double_block.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>

namespace cachedit::models {
namespace {

/// Order of the six vectors that norm1 and norm1_context project.
enum Part { kShiftAttn, kScaleAttn, kGateAttn, kShiftMlp, kScaleMlp, kGateMlp, kParts };

at::Tensor mlp_residual(const at::Tensor& x, const std::vector<at::Tensor>& mod,
                        const nn::FeedForward& ff) {
  const at::Tensor normed = nn::modulated_layer_norm(x, mod[kScaleMlp], mod[kShiftMlp]);
  return nn::add_gated(x, mod[kGateMlp], ff(normed));
}

}  // namespace

FluxDoubleBlock::FluxDoubleBlock(const nn::WeightScope& scope, const FluxConfig& c)
    : norm1_(scope / "norm1", c.width(), kParts),
      norm1_context_(scope / "norm1_context", c.width(), kParts),
      image_qkv_(scope / "attn", kImageQkv, c.num_attention_heads, c.attention_head_dim),
      text_qkv_(scope / "attn", kTextQkv, c.num_attention_heads, c.attention_head_dim),
      to_out_(scope / "attn.to_out.0", c.width(), c.width()),
      to_add_out_(scope / "attn.to_add_out", c.width(), c.width()),
      ff_(scope / "ff", c.width(), 4 * c.width(), nn::Activation::kGeluTanh),
      ff_context_(scope / "ff_context", c.width(), 4 * c.width(), nn::Activation::kGeluTanh) {}

nn::Streams FluxDoubleBlock::forward(const nn::Streams& in, const nn::BlockContext& context) const {
  const std::vector<at::Tensor> mod = norm1_(context.conditioning);
  const std::vector<at::Tensor> text_mod = norm1_context_(context.conditioning);
  const at::Tensor image = nn::modulated_layer_norm(in.hidden, mod[kScaleAttn], mod[kShiftAttn]);
  const at::Tensor text =
      nn::modulated_layer_norm(in.encoder, text_mod[kScaleAttn], text_mod[kShiftAttn]);
  const auto rotated = [&](const at::Tensor& text_part, const at::Tensor& image_part) {
    return nn::apply_rotary(at::cat({text_part, image_part}, 1), *context.rotary);
  };
  const attention::Projections projections = {
      .query = [&] { return rotated(text_qkv_.query(text), image_qkv_.query(image)); },
      .key = [&] { return rotated(text_qkv_.key(text), image_qkv_.key(image)); },
      .value =
          [&] {
            return at::cat({text_qkv_.value(text), image_qkv_.value(image)}, 1);
          }};
  const at::Tensor attended = context.attention->project_and_attend(projections, {}).out.flatten(2);
  const nn::Streams out = nn::split_streams(attended, in.encoder.size(1));

  const at::Tensor hidden = nn::add_gated(in.hidden, mod[kGateAttn], to_out_(out.hidden));
  const at::Tensor encoder =
      nn::add_gated(in.encoder, text_mod[kGateAttn], to_add_out_(out.encoder));
  nn::Streams result{.hidden = mlp_residual(hidden, mod, ff_),
                     .encoder = mlp_residual(encoder, text_mod, ff_context_)};
  if (result.encoder.scalar_type() == at::kHalf) {
    // FLUX's text stream overflows fp16 in places; diffusers saturates it here, so do we.
    result.encoder = at::clamp(result.encoder, -65504, 65504);
  }
  return result;
}

}  // namespace cachedit::models
