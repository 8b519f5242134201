// FLUX's two text encoders: CLIP for the pooled vector, T5 for the token stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "text/tokenizer.h"

namespace cachedit::pipelines {

struct PromptEmbeds {
  at::Tensor tokens;  ///< [B, max_sequence_length, joint_attention_dim]
  at::Tensor pooled;  ///< [B, pooled_projection_dim]
};

class PromptEncoder {
 public:
  PromptEncoder(std::unique_ptr<text::Tokenizer> tokenizer,
                std::unique_ptr<text::Tokenizer> tokenizer_2, models::ClipTextModel text_encoder,
                models::T5EncoderModel text_encoder_2, at::Device device);

  /// tokenizer_2's model_max_length, at most 512.
  int64_t default_sequence_length() const;

  /// `prompts` go to CLIP, `prompts_2` (as many) to T5; each embedding is repeated `copies` times,
  /// prompt-major. What does not fit is cut with a warning that quotes it.
  /// Throws InputError for text that is not UTF-8.
  PromptEmbeds encode(const std::vector<std::string>& prompts,
                      const std::vector<std::string>& prompts_2, int64_t copies,
                      int64_t max_sequence_length) const;

 private:
  at::Tensor tokenize(const text::Tokenizer& tokenizer, const std::vector<std::string>& prompts,
                      int64_t max_length, const char* encoder) const;

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::Tokenizer> tokenizer_2_;
  models::ClipTextModel text_encoder_;
  models::T5EncoderModel text_encoder_2_;
  at::Device device_;
};

}  // namespace cachedit::pipelines
