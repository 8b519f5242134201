// Query, key and value of one stream of FLUX: three projections and the norms of query and key.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "nn/layers.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

/// Checkpoint names of the five parts under a block's "attn".
struct QkvNames {
  std::string_view to_q, to_k, to_v, norm_q, norm_k;
};
inline constexpr QkvNames kImageQkv = {"to_q", "to_k", "to_v", "norm_q", "norm_k"};
inline constexpr QkvNames kTextQkv = {"add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q",
                                      "norm_added_k"};

class QkvProjection {
 public:
  QkvProjection(const nn::WeightScope& scope, const QkvNames& names, int64_t heads,
                int64_t head_dim);
  /// x [B, N, H * D] -> [B, N, H, D], query and key normalized. With tensor parallelism H is this
  /// rank's share of the heads.
  at::Tensor query(const at::Tensor& x) const { return norm_q_(heads(to_q_(x))); }
  at::Tensor key(const at::Tensor& x) const { return norm_k_(heads(to_k_(x))); }
  at::Tensor value(const at::Tensor& x) const { return heads(to_v_(x)); }

 private:
  // The number of heads follows from the width.
  at::Tensor heads(const at::Tensor& x) const { return x.unflatten(-1, {-1, head_dim_}); }

  int64_t head_dim_;
  nn::Linear to_q_, to_k_, to_v_;
  nn::RmsNorm norm_q_, norm_k_;
};

}  // namespace cachedit::models
