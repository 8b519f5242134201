// CLIP's text transformer, whose pooled output conditions FLUX.
// Radford et al. 2021, arXiv 2103.00020; names as in transformers' CLIPTextModel.
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

struct ClipTextConfig {
  int64_t vocab_size = 49408;
  int64_t hidden_size = 512;
  int64_t intermediate_size = 2048;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 8;
  int64_t max_position_embeddings = 77;
  int64_t eos_token_id = 49407;
  double layer_norm_eps = 1e-5;
  nn::Activation hidden_act = nn::Activation::kQuickGelu;

  /// Throws ConfigError for another class, values out of range, or unknown keys.
  static ClipTextConfig parse(io::JsonConfig& json);
};

struct ClipTextOutput {
  at::Tensor last_hidden_state;  ///< [B, N, C]
  at::Tensor pooler_output;      ///< [B, C]
};

/// How ranks share the encoder out: attention by heads, the MLP by its inner width.
std::vector<nn::ShardRule> clip_shard_rules();

class ClipTextModel {
 public:
  /// Where options.tensor_parallel has a group of several ranks, each of them holds its share by
  /// clip_shard_rules(), whatever rules the options carry, and all call the model together.
  /// Throws WeightError listing every missing, wrong-shaped and left-over tensor, and
  /// UnsupportedError unless the ranks divide the heads and intermediate_size.
  ClipTextModel(const ClipTextConfig& config, const io::WeightStore& store,
                const nn::WeightOptions& options);
  ~ClipTextModel();
  ClipTextModel(ClipTextModel&&) noexcept;

  /// `ids` int64 [B, N], N <= max_position_embeddings (InputError otherwise). The pooled row is the
  /// final state at the first eos_token_id; configs that still carry eos_token_id 2 (written before
  /// the id was corrected) pool at the largest id, as transformers does.
  ClipTextOutput operator()(const at::Tensor& ids, const attention::Attention& attention) const;

  at::ScalarType dtype() const { return dtype_; }
  /// What this rank holds.
  int64_t parameter_bytes() const { return parameter_bytes_; }

 private:
  struct Layers;
  ClipTextConfig config_;
  at::ScalarType dtype_;
  int64_t parameter_bytes_;
  std::unique_ptr<Layers> layers_;
};

}  // namespace cachedit::models
