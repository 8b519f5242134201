// The attention seam: one object per transformer decides which kernel runs. Models call it and
// know nothing else; later it may be a wrapper that exchanges heads or keys between ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace cachedit::attention {

/// Query [B, Nq, H, D], key and value [B, Nkv, H, D], as in diffusers. Any strides.
struct Inputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  /// Optional, broadcasts to [B, H, Nq, Nkv]: bool (true takes part) or additive float.
  at::Tensor mask = {};
  bool is_causal = false;
  /// Default 1 / sqrt(D).
  std::optional<double> scale = std::nullopt;
};

struct Result {
  at::Tensor out;  ///< [B, Nq, H, D], dtype of the query
  at::Tensor lse;  ///< natural log, fp32, [B, H, Nq]; undefined where the object gives none
};

class Attention {
 public:
  virtual ~Attention() = default;
  /// Throws InputError for shapes, dtypes or devices that do not fit together.
  virtual Result operator()(const Inputs& inputs) const = 0;
};

/// ATen's scaled_dot_product_attention.
class NativeAttention final : public Attention {
 public:
  Result operator()(const Inputs& inputs) const override;
};

}  // namespace cachedit::attention
