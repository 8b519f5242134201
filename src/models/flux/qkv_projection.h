// Query, key and value of one stream of FLUX: three projections as one, and the norms and rotation
// of query and key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "nn/layers.h"
#include "nn/rotary.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

/// Checkpoint names of the five parts under a block's "attn".
struct QkvNames {
  std::string_view to_q, to_k, to_v, norm_q, norm_k;
};
inline constexpr QkvNames kImageQkv = {"to_q", "to_k", "to_v", "norm_q", "norm_k"};
inline constexpr QkvNames kTextQkv = {"add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q",
                                      "norm_added_k"};

/// Query, key and value [B, N, H, D] as views of one buffer [B, N, 3 * H * D].
struct QkvViews {
  at::Tensor query, key, value;
};
QkvViews qkv_views(const at::Tensor& buffer, int64_t head_dim);

class QkvProjection {
 public:
  QkvProjection(const nn::WeightScope& scope, const QkvNames& names, int64_t heads,
                int64_t head_dim);

  /// Columns of the buffer: with tensor parallelism H is this rank's share of the heads.
  int64_t width() const { return linear_.out_features(); }
  /// x [B, N, C] -> `buffer` [B, N, width()], rows of any stride, query and key normalized and
  /// rotated by the angles of the N tokens.
  void project(const at::Tensor& x, const nn::RotaryEmbedding& rotary,
               const at::Tensor& buffer) const;

 private:
  int64_t head_dim_;
  nn::Linear linear_;
  nn::RmsNorm norm_q_, norm_k_;
};

}  // namespace cachedit::models
