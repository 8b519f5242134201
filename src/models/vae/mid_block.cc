#include "models/vae/mid_block.h"

#include <string_view>

#include "attention/attention.h"

namespace cachedit::models {
namespace {

/// The scope of a projection under its present name, or its old one where the file has only that.
nn::WeightScope projection(const nn::WeightScope& scope, std::string_view name,
                           std::string_view old_name) {
  const nn::WeightScope old = scope / old_name;
  const nn::WeightScope present = scope / name;
  return !present.contains("weight") && old.contains("weight") ? old : present;
}

}  // namespace

VaeAttention::VaeAttention(const nn::WeightScope& scope, int64_t channels,
                           const VaeBlockOptions& options)
    : group_norm_(scope / "group_norm", options.norm_num_groups, channels, kVaeNormEps),
      to_q_(projection(scope, "to_q", "query"), channels, channels),
      to_k_(projection(scope, "to_k", "key"), channels, channels),
      to_v_(projection(scope, "to_v", "value"), channels, channels),
      to_out_(projection(scope, "to_out.0", "proj_attn"), channels, channels) {}

at::Tensor VaeAttention::operator()(const at::Tensor& x, const nn::SpatialShard* shard) const {
  // With channels last, [B, C, H, W] -> [B, H * W, C] and back are views.
  const at::Tensor tokens = group_norm_(x, shard).flatten(2).transpose(1, 2);
  at::Tensor key = to_k_(tokens), value = to_v_(tokens);
  if (shard != nullptr) {
    key = shard->gather(key, 1);
    value = shard->gather(value, 1);
  }
  const attention::Inputs qkv{.query = to_q_(tokens).unsqueeze(2),  // one head
                              .key = key.unsqueeze(2),
                              .value = value.unsqueeze(2)};
  at::Tensor attended = to_out_(attention::native_attention()(qkv).out.flatten(2));
  return attended.unflatten(1, {x.size(2), x.size(3)}).permute({0, 3, 1, 2}).add_(x);
}

VaeMidBlock::VaeMidBlock(const nn::WeightScope& scope, int64_t channels, bool add_attention,
                         const VaeBlockOptions& options)
    : resnet0_(scope / "resnets.0", channels, channels, options),
      resnet1_(scope / "resnets.1", channels, channels, options) {
  if (add_attention) attention_.emplace(scope / "attentions.0", channels, options);
}

at::Tensor VaeMidBlock::operator()(const at::Tensor& x, const nn::SpatialShard* shard) const {
  at::Tensor h = resnet0_(x, shard);
  if (attention_) h = (*attention_)(h, shard);
  return resnet1_(h, shard);
}

}  // namespace cachedit::models
