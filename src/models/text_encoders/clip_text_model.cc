#include "models/text_encoders/clip_text_model.h"

#include <ATen/TensorOperators.h>

#include <string>

#include "base/fail.h"
#include "models/text_encoders/encoder_shards.h"
#include "models/text_encoders/token_ids.h"
#include "models/text_encoders/transformers_config.h"
#include "nn/layers.h"

namespace cachedit::models {
namespace {

constexpr const char* kWhere = "CLIPTextModel";

/// The value that every CLIP config carried before transformers corrected it to the real id.
constexpr int64_t kLegacyEosTokenId = 2;

ClipTextConfig parse_text_config(io::JsonConfig& json) {
  ClipTextConfig c;
  c.vocab_size = read_size(json, "vocab_size", c.vocab_size);
  c.hidden_size = read_size(json, "hidden_size", c.hidden_size);
  c.intermediate_size = read_size(json, "intermediate_size", c.intermediate_size);
  c.num_hidden_layers = read_size(json, "num_hidden_layers", c.num_hidden_layers, 1024);
  c.num_attention_heads = read_size(json, "num_attention_heads", c.num_attention_heads);
  c.max_position_embeddings = read_size(json, "max_position_embeddings", c.max_position_embeddings);
  c.eos_token_id = json.get_or<int64_t>("eos_token_id", c.eos_token_id);
  c.layer_norm_eps = read_epsilon(json, "layer_norm_eps", c.layer_norm_eps);
  c.hidden_act =
      nn::parse_activation(json.get_or<std::string>("hidden_act", "quick_gelu"), json.where());
  if (c.hidden_size % c.num_attention_heads != 0) {
    fail<ConfigError>(json.where(), "hidden_size must be a multiple of num_attention_heads: got ",
                      c.hidden_size, " and ", c.num_attention_heads,
                      "; restore the checkpoint's config");
  }
  ignore_base_config_keys(json);
  json.ignore({"attention_dropout", "dropout", "projection_dim"});
  json.finish();
  return c;
}

/// transformers writes the names with and without "text_model." depending on class and version.
nn::WeightScope text_scope(const io::WeightStore& store, const nn::WeightScope& root) {
  for (const std::string& name : store.names()) {
    if (name.starts_with("text_model.")) return root / "text_model";
  }
  return root;
}

class EncoderLayer {
 public:
  EncoderLayer(const nn::WeightScope& scope, const ClipTextConfig& c)
      : head_width_(c.hidden_size / c.num_attention_heads),
        act_(c.hidden_act),
        layer_norm1_(scope / "layer_norm1", c.hidden_size, c.layer_norm_eps),
        q_proj_(scope / "self_attn.q_proj", c.hidden_size, c.hidden_size),
        k_proj_(scope / "self_attn.k_proj", c.hidden_size, c.hidden_size),
        v_proj_(scope / "self_attn.v_proj", c.hidden_size, c.hidden_size),
        out_proj_(scope / "self_attn.out_proj", c.hidden_size, c.hidden_size),
        layer_norm2_(scope / "layer_norm2", c.hidden_size, c.layer_norm_eps),
        fc1_(scope / "mlp.fc1", c.hidden_size, c.intermediate_size),
        fc2_(scope / "mlp.fc2", c.intermediate_size, c.hidden_size) {}

  at::Tensor operator()(const at::Tensor& x, const attention::Attention& attend) const {
    const at::Tensor h = layer_norm1_(x);
    const at::Tensor attended = attend({.query = split_heads(q_proj_(h)),
                                        .key = split_heads(k_proj_(h)),
                                        .value = split_heads(v_proj_(h)),
                                        .is_causal = true})
                                    .out.flatten(2);  // [B, N, C]
    const at::Tensor y = x + out_proj_(attended);
    return y + fc2_(nn::activate(act_, fc1_(layer_norm2_(y))));
  }

 private:
  /// As many heads as this rank has.
  at::Tensor split_heads(const at::Tensor& x) const { return x.unflatten(-1, {-1, head_width_}); }

  int64_t head_width_;
  nn::Activation act_;
  nn::LayerNorm layer_norm1_;
  nn::Linear q_proj_;
  nn::Linear k_proj_;
  nn::Linear v_proj_;
  nn::Linear out_proj_;
  nn::LayerNorm layer_norm2_;
  nn::Linear fc1_;
  nn::Linear fc2_;
};

/// [B]: where each row is pooled. Without the id in a row that is 0, as in transformers.
at::Tensor pooled_positions(const at::Tensor& ids, int64_t eos_token_id) {
  if (eos_token_id == kLegacyEosTokenId) return ids.argmax(-1);
  return ids.eq(eos_token_id).to(at::kInt).argmax(-1);
}

}  // namespace

std::vector<nn::ShardRule> clip_shard_rules() {
  using nn::Shard;
  // Names with and without the prefix; see text_scope().
  return {
      {"encoder.layers.*.self_attn.q_proj", Shard::kColumns},
      {"encoder.layers.*.self_attn.k_proj", Shard::kColumns},
      {"encoder.layers.*.self_attn.v_proj", Shard::kColumns},
      {"encoder.layers.*.self_attn.out_proj", Shard::kRows},
      {"encoder.layers.*.mlp.fc1", Shard::kColumns},
      {"encoder.layers.*.mlp.fc2", Shard::kRows},
      {"text_model.encoder.layers.*.self_attn.q_proj", Shard::kColumns},
      {"text_model.encoder.layers.*.self_attn.k_proj", Shard::kColumns},
      {"text_model.encoder.layers.*.self_attn.v_proj", Shard::kColumns},
      {"text_model.encoder.layers.*.self_attn.out_proj", Shard::kRows},
      {"text_model.encoder.layers.*.mlp.fc1", Shard::kColumns},
      {"text_model.encoder.layers.*.mlp.fc2", Shard::kRows},
  };
}

ClipTextConfig ClipTextConfig::parse(io::JsonConfig& json) {
  if (auto text = json.find_object("text_config")) {
    require_model(json, {"CLIPModel", "CLIPTextModel", "CLIPTextModelWithProjection"}, {"clip"});
    if (const auto type = text->find<std::string>("model_type");
        type && *type != "clip_text_model") {
      fail<ConfigError>(text->where(), "model_type must be clip_text_model: got '", *type,
                        "'; choose a checkpoint with that text encoder");
    }
    text->class_name();  // often null here, and not needed
    ignore_base_config_keys(json);
    // A copy of text_config that only the joint model reads, and what belongs to its image half.
    json.ignore({"text_config_dict", "vision_config", "vision_config_dict", "projection_dim",
                 "logit_scale_init_value"});
    json.finish();
    return parse_text_config(*text);
  }
  require_model(json, {"CLIPTextModel", "CLIPTextModelWithProjection"}, {"clip_text_model"});
  return parse_text_config(json);
}

struct ClipTextModel::Layers {
  Layers(const nn::WeightScope& scope, const ClipTextConfig& c)
      : token_embedding(scope / "embeddings.token_embedding", c.vocab_size, c.hidden_size),
        position_embedding((scope / "embeddings.position_embedding")
                               .take("weight", {c.max_position_embeddings, c.hidden_size})),
        final_layer_norm(scope / "final_layer_norm", c.hidden_size, c.layer_norm_eps) {
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      layers.emplace_back(scope / "encoder.layers" / i, c);
    }
  }

  nn::Embedding token_embedding;
  at::Tensor position_embedding;  // [max_position_embeddings, C]
  std::vector<EncoderLayer> layers;
  nn::LayerNorm final_layer_norm;
};

ClipTextModel::ClipTextModel(const ClipTextConfig& config, const io::WeightStore& store,
                             const nn::WeightOptions& options)
    : config_(config) {
  check_encoder_shards(kWhere,
                       {{"num_attention_heads", config.num_attention_heads},
                        {"intermediate_size", config.intermediate_size}},
                       options.tensor_parallel);
  const nn::WeightLoader loader(store, with_rules(options, clip_shard_rules()));
  const nn::WeightScope scope = text_scope(store, loader.root());
  dtype_ = scope.dtype();
  layers_ = std::make_unique<Layers>(scope, config_);
  // A buffer that older versions stored, and the other parts of the joint and projecting models.
  loader.finish({scope.prefix() + "embeddings.position_ids", "text_projection.", "vision_model.",
                 "visual_projection.", "logit_scale"});
  parameter_bytes_ = loader.bytes();
}

ClipTextModel::~ClipTextModel() = default;
ClipTextModel::ClipTextModel(ClipTextModel&&) noexcept = default;

ClipTextOutput ClipTextModel::operator()(const at::Tensor& ids,
                                         const attention::Attention& attention) const {
  check_token_ids(ids, config_.vocab_size, kWhere);
  const int64_t tokens = ids.size(1);
  if (tokens > config_.max_position_embeddings) {
    fail<InputError>(kWhere, "a sequence has at most max_position_embeddings = ",
                     config_.max_position_embeddings, " tokens: got ", tokens,
                     "; truncate the prompt");
  }
  const at::Tensor on_device = ids.to(layers_->position_embedding.device());
  at::Tensor x =
      layers_->token_embedding(on_device) + layers_->position_embedding.narrow(0, 0, tokens);
  for (const EncoderLayer& layer : layers_->layers) x = layer(x, attention);
  x = layers_->final_layer_norm(x);

  const at::Tensor rows = pooled_positions(on_device, config_.eos_token_id)
                              .view({-1, 1, 1})
                              .expand({-1, 1, config_.hidden_size});
  return {.last_hidden_state = x, .pooler_output = x.gather(1, rows).squeeze(1)};
}

}  // namespace cachedit::models
