#include "models/text_encoders/t5_encoder_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/rsqrt.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/fail.h"
#include "models/text_encoders/encoder_shards.h"
#include "models/text_encoders/t5_position_bias.h"
#include "models/text_encoders/token_ids.h"
#include "models/text_encoders/transformers_config.h"
#include "nn/layers.h"

namespace cachedit::models {
namespace {

constexpr const char* kWhere = "T5EncoderModel";

/// Fills is_gated_act and activation. feed_forward_proj is "<act>" or "gated-<act>", where
/// "gated-gelu" has always meant the tanh form; the derived keys, where present, win.
void parse_feed_forward(io::JsonConfig& json, T5EncoderConfig& c) {
  const std::string proj = json.get_or<std::string>("feed_forward_proj", "relu");
  const bool gated = proj.starts_with("gated-");
  const std::string act = gated ? proj.substr(6) : proj;
  if (act.find('-') != std::string::npos) {
    fail<ConfigError>(json.where(), "feed_forward_proj must be '<act>' or 'gated-<act>': got '",
                      proj, "'; restore the checkpoint's config");
  }
  c.is_gated_act = json.get_or<bool>("is_gated_act", gated);
  c.activation = nn::parse_activation(
      json.get_or<std::string>("dense_act_fn", proj == "gated-gelu" ? "gelu_new" : act),
      json.where());
}

void check_buckets(const T5EncoderConfig& c, const std::string& where) {
  // A quarter of the buckets hold exact distances; the rest of each half grow to max_distance.
  const int64_t exact = c.relative_attention_num_buckets / 4;
  if (exact < 1 || c.relative_attention_max_distance <= exact) {
    fail<ConfigError>(where,
                      "relative_attention_num_buckets must be at least 4 and "
                      "relative_attention_max_distance above a quarter of it: got ",
                      c.relative_attention_num_buckets, " and ", c.relative_attention_max_distance,
                      "; restore the checkpoint's config");
  }
}

/// Scales by the root mean square, which is taken in fp32; the product is rounded to the weight's
/// dtype before the weight is applied (nn::RmsNorm rounds once, at the end).
class T5LayerNorm {
 public:
  T5LayerNorm(const nn::WeightScope& scope, const T5EncoderConfig& c)
      : eps_(c.layer_norm_epsilon), weight_(scope.take("weight", {c.d_model})) {}

  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor mean_square = x.to(at::kFloat).square().mean(-1, /*keepdim=*/true);
    return (x * at::rsqrt(mean_square + eps_)).to(weight_.scalar_type()).mul_(weight_);
  }

 private:
  double eps_;
  at::Tensor weight_;
};

/// float16 overflows in sums over the feed-forward width, so weights of these stay in fp32.
at::ScalarType wide_dtype(const nn::WeightScope& scope) {
  return scope.dtype() == at::kHalf ? at::kFloat : scope.dtype();
}

class SelfAttention {
 public:
  SelfAttention(const nn::WeightScope& scope, const T5EncoderConfig& c)
      : head_width_(c.d_kv),
        q_(scope / "q", c.d_model, c.num_heads * c.d_kv, nn::Bias::kNo),
        k_(scope / "k", c.d_model, c.num_heads * c.d_kv, nn::Bias::kNo),
        v_(scope / "v", c.d_model, c.num_heads * c.d_kv, nn::Bias::kNo),
        // Parts of a sum that ranks share may overflow float16 with opposite signs, which would
        // give NaN where the whole sum fits.
        o_(scope / "o", c.num_heads * c.d_kv, c.d_model, nn::Bias::kNo,
           (scope / "o").shard_rule() != nullptr ? wide_dtype(scope) : scope.dtype()) {}

  /// T5 folds the usual 1 / sqrt(d_kv) into its weights.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias,
                        const attention::Attention& attend) const {
    const at::Tensor attended = attend({.query = split_heads(q_(x)),
                                        .key = split_heads(k_(x)),
                                        .value = split_heads(v_(x)),
                                        .mask = bias,
                                        .scale = 1.0})
                                    .out.flatten(2);
    return o_(attended.to(o_.dtype())).to(x.scalar_type());
  }

 private:
  /// As many heads as this rank has.
  at::Tensor split_heads(const at::Tensor& x) const { return x.unflatten(-1, {-1, head_width_}); }

  int64_t head_width_;
  nn::Linear q_;
  nn::Linear k_;
  nn::Linear v_;
  nn::Linear o_;
};

class FeedForward {
 public:
  FeedForward(const nn::WeightScope& scope, const T5EncoderConfig& c)
      : act_(c.activation),
        wi_(scope / (c.is_gated_act ? "wi_0" : "wi"), c.d_model, c.d_ff, nn::Bias::kNo),
        wo_(scope / "wo", c.d_ff, c.d_model, nn::Bias::kNo, wide_dtype(scope)) {
    if (c.is_gated_act) wi_1_.emplace(scope / "wi_1", c.d_model, c.d_ff, nn::Bias::kNo);
  }

  at::Tensor operator()(const at::Tensor& x) const {
    nn::LinearCall call{.input = x, .activation = act_};
    if (wi_1_) call.factor = (*wi_1_)(x);
    return wo_(wi_.run(call).to(wo_.dtype()));
  }

 private:
  nn::Activation act_;
  nn::Linear wi_;  // "wi_0" in the gated form
  std::optional<nn::Linear> wi_1_;
  nn::Linear wo_;
};

/// Keeps float16 values finite, as transformers does: with an infinity anywhere all of them are
/// brought down by 1000 from the largest float16. Other dtypes pass.
at::Tensor clamp_half(const at::Tensor& x) {
  if (x.scalar_type() != at::kHalf || !at::isinf(x).any().item<bool>()) return x;
  const double limit = std::numeric_limits<at::Half>::max() - 1000.0;
  return at::clamp(x, -limit, limit);
}

class Block {
 public:
  Block(const nn::WeightScope& scope, const T5EncoderConfig& c)
      : attention_norm_(scope / "layer.0.layer_norm", c),
        attention_(scope / "layer.0.SelfAttention", c),
        feed_forward_norm_(scope / "layer.1.layer_norm", c),
        feed_forward_(scope / "layer.1.DenseReluDense", c) {}

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& bias,
                        const attention::Attention& attend) const {
    at::Tensor attended = attention_(attention_norm_(x), bias, attend);
    // Where wo has made the sum fp32, the sum cannot show that this term overflowed; transformers
    // lets it become NaN.
    if (x.scalar_type() != at::kHalf) attended = clamp_half(attended);
    const at::Tensor y = clamp_half(x + attended);
    return clamp_half(y + feed_forward_(feed_forward_norm_(y)));
  }

 private:
  T5LayerNorm attention_norm_;
  SelfAttention attention_;
  T5LayerNorm feed_forward_norm_;
  FeedForward feed_forward_;
};

/// The encoder reads "encoder.embed_tokens"; files usually hold it once, under its tied name.
constexpr const char* kEmbedding = "encoder.embed_tokens";
constexpr const char* kTiedEmbedding = "shared";

nn::WeightScope embedding_scope(const nn::WeightScope& root) {
  const nn::WeightScope own = root / kEmbedding;
  return own.contains("weight") ? own : root / kTiedEmbedding;
}

at::Tensor position_table(const nn::WeightScope& root, const T5EncoderConfig& c) {
  const nn::WeightScope scope =
      root / "encoder.block.0.layer.0.SelfAttention.relative_attention_bias";
  const std::vector<int64_t> shape = {c.relative_attention_num_buckets, c.num_heads};
  const nn::ShardRule* rule = scope.shard_rule();
  return rule == nullptr ? scope.take("weight", shape)
                         : scope.take_share("weight", shape, 1, *rule, scope.dtype());
}

}  // namespace

std::vector<nn::ShardRule> t5_shard_rules() {
  using nn::Shard;
  return {
      {"encoder.block.*.layer.0.SelfAttention.q", Shard::kColumns},
      {"encoder.block.*.layer.0.SelfAttention.k", Shard::kColumns},
      {"encoder.block.*.layer.0.SelfAttention.v", Shard::kColumns},
      {"encoder.block.*.layer.0.SelfAttention.o", Shard::kRows},
      {"encoder.block.*.layer.0.SelfAttention.relative_attention_bias", Shard::kLastDim},
      {"encoder.block.*.layer.1.DenseReluDense.wi", Shard::kColumns},
      {"encoder.block.*.layer.1.DenseReluDense.wi_0", Shard::kColumns},
      {"encoder.block.*.layer.1.DenseReluDense.wi_1", Shard::kColumns},
      {"encoder.block.*.layer.1.DenseReluDense.wo", Shard::kRows},
  };
}

T5EncoderConfig T5EncoderConfig::parse(io::JsonConfig& json) {
  require_model(json, {"T5EncoderModel", "T5Model", "T5ForConditionalGeneration"}, {"t5"});
  T5EncoderConfig c;
  c.vocab_size = read_size(json, "vocab_size", c.vocab_size);
  c.d_model = read_size(json, "d_model", c.d_model);
  c.d_kv = read_size(json, "d_kv", c.d_kv);
  c.d_ff = read_size(json, "d_ff", c.d_ff);
  c.num_layers = read_size(json, "num_layers", c.num_layers, 1024);
  c.num_heads = read_size(json, "num_heads", c.num_heads);
  c.relative_attention_num_buckets =
      read_size(json, "relative_attention_num_buckets", c.relative_attention_num_buckets);
  c.relative_attention_max_distance =
      read_size(json, "relative_attention_max_distance", c.relative_attention_max_distance);
  c.layer_norm_epsilon = read_epsilon(json, "layer_norm_epsilon", c.layer_norm_epsilon);
  check_buckets(c, json.where());
  parse_feed_forward(json, c);
  json.expect("is_decoder", false, "only the encoder is implemented");
  ignore_base_config_keys(json);
  json.ignore({"dropout_rate", "classifier_dropout", "n_positions", "num_decoder_layers",
               "scale_decoder_outputs", "eos_token_id"});
  json.finish();
  return c;
}

struct T5EncoderModel::Layers {
  Layers(const nn::WeightScope& root, const T5EncoderConfig& c)
      : embed_tokens(embedding_scope(root), c.vocab_size, c.d_model),
        relative_attention_bias(position_table(root, c)),
        final_layer_norm(root / "encoder.final_layer_norm", c) {
    for (int64_t i = 0; i < c.num_layers; ++i) block.emplace_back(root / "encoder.block" / i, c);
  }

  nn::Embedding embed_tokens;
  at::Tensor relative_attention_bias;  // [buckets, this rank's heads], block 0's, for all blocks
  std::vector<Block> block;
  T5LayerNorm final_layer_norm;
};

T5EncoderModel::T5EncoderModel(const T5EncoderConfig& config, const io::WeightStore& store,
                               const nn::WeightOptions& options)
    : config_(config) {
  check_encoder_shards(kWhere, {{"num_heads", config.num_heads}, {"d_ff", config.d_ff}},
                       options.tensor_parallel);
  const nn::WeightLoader loader(store, with_rules(options, t5_shard_rules()));
  dtype_ = loader.root().dtype();
  layers_ = std::make_unique<Layers>(loader.root(), config_);
  // The tied copy that was not taken, and the other half of full T5 checkpoints.
  loader.finish({std::string(kTiedEmbedding) + ".weight", "decoder.", "lm_head."});
  parameter_bytes_ = loader.bytes();
}

T5EncoderModel::~T5EncoderModel() = default;
T5EncoderModel::T5EncoderModel(T5EncoderModel&&) noexcept = default;

at::Tensor T5EncoderModel::operator()(const at::Tensor& ids,
                                      const attention::Attention& attention) const {
  check_token_ids(ids, config_.vocab_size, kWhere);
  const at::Tensor& table = layers_->relative_attention_bias;
  const at::Tensor bias =
      t5_position_bias(table, ids.size(1), config_.relative_attention_max_distance);
  at::Tensor x = layers_->embed_tokens(ids.to(table.device()));
  for (const Block& block : layers_->block) x = block(x, bias, attention);
  return layers_->final_layer_norm(x);
}

}  // namespace cachedit::models
