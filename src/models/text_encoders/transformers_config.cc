#include "models/text_encoders/transformers_config.h"

#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "models/quantization_method.h"

namespace cachedit::models {

int64_t read_size(io::JsonConfig& json, std::string_view key, int64_t fallback, int64_t limit) {
  const int64_t value = json.get_or<int64_t>(key, fallback);
  if (value < 1 || value > limit) {
    fail<ConfigError>(json.where(), key, " must be from 1 to ", limit, ": got ", value,
                      "; restore the checkpoint's config");
  }
  return value;
}

double read_epsilon(io::JsonConfig& json, std::string_view key, double fallback) {
  const double value = json.get_or<double>(key, fallback);
  if (!(value > 0 && value < 1)) {
    fail<ConfigError>(json.where(), key, " must be between 0 and 1: got ", value,
                      "; restore the checkpoint's config");
  }
  return value;
}

void require_model(io::JsonConfig& json, std::initializer_list<std::string_view> classes,
                   std::initializer_list<std::string_view> model_types) {
  const auto type = json.find<std::string>("model_type");
  if (type && std::find(model_types.begin(), model_types.end(), *type) == model_types.end()) {
    std::string known;
    for (const std::string_view name : model_types)
      known += c10::str(known.empty() ? "" : ", ", name);
    fail<ConfigError>(json.where(), "model_type must be one of ", known, ": got '", *type,
                      "'; choose a checkpoint with that text encoder");
  }
  if (!type || json.class_name()) json.require_class(classes);
  check_quantization_method(json);
}

void ignore_base_config_keys(io::JsonConfig& json) {
  json.ignore({"dtype",
               "torch_dtype",
               "transformers_version",
               "initializer_range",
               "initializer_factor",
               "bos_token_id",
               "pad_token_id",
               "sep_token_id",
               "use_cache",
               "return_dict",
               "output_hidden_states",
               "output_attentions",
               "torchscript",
               "use_bfloat16",
               "chunk_size_feed_forward",
               "problem_type",
               "finetuning_task",
               "is_encoder_decoder",
               "tie_encoder_decoder",
               "tie_word_embeddings",
               "cross_attention_hidden_size",
               "add_cross_attention",
               "pruned_heads",
               "tf_legacy_loss",
               "gradient_checkpointing"});
  json.ignore({"task_specific_params", "output_past", "id2label", "label2id", "num_labels",
               "prefix", "tokenizer_class", "decoder_start_token_id", "forced_bos_token_id",
               "forced_eos_token_id"});
  json.ignore({"max_length",
               "min_length",
               "do_sample",
               "early_stopping",
               "num_beams",
               "num_beam_groups",
               "diversity_penalty",
               "temperature",
               "top_k",
               "top_p",
               "typical_p",
               "repetition_penalty",
               "length_penalty",
               "no_repeat_ngram_size",
               "encoder_no_repeat_ngram_size",
               "bad_words_ids",
               "suppress_tokens",
               "begin_suppress_tokens",
               "num_return_sequences",
               "output_scores",
               "return_dict_in_generate",
               "remove_invalid_values",
               "exponential_decay_length_penalty"});
}

}  // namespace cachedit::models
