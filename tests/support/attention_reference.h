// Attention by its definition, in float64, for the tests of kernels and backends; and seeded
// inputs for it, in the memory layouts that pipelines produce.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace cachedit::test {

/// Query [B, Nq, H, D], key and value [B, Nkv, Hkv, D] where Hkv divides H: query head h reads key
/// head h / (H / Hkv).
struct AttentionInputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  /// Optional, 4-D, broadcasts to [B, H, Nq, Nkv]: bool (true takes part) or additive float.
  at::Tensor mask = {};
  /// With `causal`, query i sees key j where j <= i + causal_offset.
  bool causal = false;
  int64_t causal_offset = 0;
  /// Default 1 / sqrt(D).
  std::optional<double> scale = std::nullopt;

  double effective_scale() const;
};

struct AttentionOutputs {
  at::Tensor out;  ///< [B, Nq, H, D]
  at::Tensor lse;  ///< [B, H, Nq], natural log
};

/// The definition in float64, from the inputs as they are after rounding to their dtype. A row that
/// no key takes part in gives zeros and lse = -inf; so does every row when Nkv is 0.
AttentionOutputs reference_attention(const AttentionInputs& in);

/// at::scaled_dot_product_attention on the same inputs, in their own dtype. Key heads are repeated
/// and a causal offset becomes a mask, so that ATen always takes its fused CPU kernel.
at::Tensor aten_attention(const AttentionInputs& in);

struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t queries = 1;
  int64_t keys = 1;
  int64_t head_dim = 64;
};

/// Standard normal query, key and value, contiguous.
AttentionInputs random_attention_inputs(const AttentionShape& shape, at::ScalarType dtype,
                                        uint64_t seed);

/// Standard normal numbers.
at::Tensor seeded_normal(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed);

/// True with the given probability.
at::Tensor seeded_bool(at::IntArrayRef shape, double probability, uint64_t seed);

/// A copy of key [B, N, H, D] in which one channel in 32 carries the same large offset in every
/// token, as keys of diffusion transformers do. Softmax ignores the offset; a quantizer that does
/// not remove it spends its range on it.
at::Tensor with_channel_outliers(const at::Tensor& key, double magnitude = 100);

enum class Layout {
  kContiguous,
  kFusedQkv,    ///< slices of a [B, N, 3, H, D] tensor
  kHeadsFirst,  ///< stored as [B, H, N, D]
  kPadded,      ///< rows of D + 3 elements, so that no row is aligned
};

/// The same values in another layout. Memory between the elements holds NaN.
at::Tensor in_layout(const at::Tensor& tensor, Layout layout);
AttentionInputs in_layout(AttentionInputs inputs, Layout layout);

}  // namespace cachedit::test
