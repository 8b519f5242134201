#include "models/flux/qkv_projection.h"

namespace cachedit::models {

QkvProjection::QkvProjection(const nn::WeightScope& scope, const QkvNames& names, int64_t heads,
                             int64_t head_dim)
    : head_dim_(head_dim),
      to_q_(scope / names.to_q, heads * head_dim, heads * head_dim),
      to_k_(scope / names.to_k, heads * head_dim, heads * head_dim),
      to_v_(scope / names.to_v, heads * head_dim, heads * head_dim),
      norm_q_(scope / names.norm_q, head_dim, 1e-6),
      norm_k_(scope / names.norm_k, head_dim, 1e-6) {}

}  // namespace cachedit::models
