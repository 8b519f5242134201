#include "models/flux/qkv_projection.h"

#include "nn/fused_operators.h"

namespace cachedit::models {

QkvViews qkv_views(const at::Tensor& buffer, int64_t head_dim) {
  const int64_t width = buffer.size(2) / 3;
  const auto part = [&](int64_t i) {
    return buffer.narrow(2, i * width, width).unflatten(-1, {-1, head_dim});
  };
  return {.query = part(0), .key = part(1), .value = part(2)};
}

QkvProjection::QkvProjection(const nn::WeightScope& scope, const QkvNames& names, int64_t heads,
                             int64_t head_dim)
    : head_dim_(head_dim),
      linear_({scope / names.to_q, scope / names.to_k, scope / names.to_v}, heads * head_dim,
              heads * head_dim),
      norm_q_(scope / names.norm_q, head_dim, 1e-6),
      norm_k_(scope / names.norm_k, head_dim, 1e-6) {}

void QkvProjection::project(const at::Tensor& x, const nn::RotaryEmbedding& rotary,
                            const at::Tensor& buffer) const {
  linear_.run({.input = x, .out = buffer});
  const QkvViews views = qkv_views(buffer, head_dim_);
  nn::norm_and_rotate_(views.query, norm_q_.weight(), norm_q_.eps(), rotary);
  nn::norm_and_rotate_(views.key, norm_k_.weight(), norm_k_.eps(), rotary);
}

}  // namespace cachedit::models
