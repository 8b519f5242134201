// T5's encoder, whose token states are FLUX's text stream.
// Raffel et al. 2019, arXiv 1910.10683; names as in transformers' T5EncoderModel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "io/json_config.h"
#include "io/weight_store.h"
#include "nn/activation.h"
#include "nn/shard.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

struct T5EncoderConfig {
  int64_t vocab_size = 32128;
  int64_t d_model = 512;
  int64_t d_kv = 64;
  int64_t d_ff = 2048;
  int64_t num_layers = 6;
  int64_t num_heads = 8;
  int64_t relative_attention_num_buckets = 32;
  int64_t relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  bool is_gated_act = false;
  nn::Activation activation = nn::Activation::kRelu;

  /// Throws ConfigError for another class, values out of range, or unknown keys.
  static T5EncoderConfig parse(io::JsonConfig& json);
};

/// How ranks share the encoder out: attention by heads, the feed-forward part by its inner width.
std::vector<nn::ShardRule> t5_shard_rules();

class T5EncoderModel {
 public:
  /// Where options.tensor_parallel has a group of several ranks, each of them holds its share by
  /// t5_shard_rules(), whatever rules the options carry, and all call the model together.
  /// Throws WeightError listing every missing, wrong-shaped and left-over tensor, and
  /// UnsupportedError unless the ranks divide the heads and d_ff.
  T5EncoderModel(const T5EncoderConfig& config, const io::WeightStore& store,
                 const nn::WeightOptions& options);
  ~T5EncoderModel();
  T5EncoderModel(T5EncoderModel&&) noexcept;

  /// `ids` int64 [B, N] -> last hidden state [B, N, d_model]. No padding mask, as FLUX uses it.
  at::Tensor operator()(const at::Tensor& ids, const attention::Attention& attention) const;

  at::ScalarType dtype() const { return dtype_; }
  /// What this rank holds.
  int64_t parameter_bytes() const { return parameter_bytes_; }

 private:
  struct Layers;
  T5EncoderConfig config_;
  at::ScalarType dtype_;
  int64_t parameter_bytes_;
  std::unique_ptr<Layers> layers_;
};

}  // namespace cachedit::models
