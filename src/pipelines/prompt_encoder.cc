#include "pipelines/prompt_encoder.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/log.h"

namespace cachedit::pipelines {
namespace {

constexpr int64_t kMaxSequenceLength = 512;
constexpr int64_t kClipLength = 77;  // where the tokenizer's config sets no limit

}  // namespace

PromptEncoder::PromptEncoder(std::unique_ptr<text::Tokenizer> tokenizer,
                             std::unique_ptr<text::Tokenizer> tokenizer_2,
                             models::ClipTextModel text_encoder,
                             models::T5EncoderModel text_encoder_2, at::Device device)
    : tokenizer_(std::move(tokenizer)),
      tokenizer_2_(std::move(tokenizer_2)),
      text_encoder_(std::move(text_encoder)),
      text_encoder_2_(std::move(text_encoder_2)),
      device_(device) {}

int64_t PromptEncoder::default_sequence_length() const {
  return std::min(tokenizer_2_->model_max_length(), kMaxSequenceLength);
}

at::Tensor PromptEncoder::tokenize(const text::Tokenizer& tokenizer,
                                   const std::vector<std::string>& prompts, int64_t max_length,
                                   const char* encoder) const {
  at::Tensor ids = at::empty({static_cast<int64_t>(prompts.size()), max_length}, at::kLong);
  auto* row = ids.mutable_data_ptr<int64_t>();
  for (const std::string& prompt : prompts) {
    const text::Encoding encoding = tokenizer.encode(prompt, max_length);
    if (!encoding.cut.empty()) {
      log_warning(c10::str("[prompt] ", encoder, " takes ", max_length,
                           " tokens; this part of the prompt was cut for it: '", encoding.cut,
                           "'"));
    }
    row = std::copy(encoding.ids.begin(), encoding.ids.end(), row);
  }
  return ids.to(device_);
}

PromptEmbeds PromptEncoder::encode(const std::vector<std::string>& prompts,
                                   const std::vector<std::string>& prompts_2, int64_t copies,
                                   int64_t max_sequence_length) const {
  const int64_t clip_limit = tokenizer_->model_max_length();
  const int64_t clip_length = clip_limit > kMaxSequenceLength ? kClipLength : clip_limit;
  const at::Tensor clip_ids = tokenize(*tokenizer_, prompts, clip_length, "CLIP");
  const at::Tensor t5_ids = tokenize(*tokenizer_2_, prompts_2, max_sequence_length, "T5");
  // Masks and biases of text encoders are no business of the transformer's attention backend.
  const attention::Attention& attend = attention::native_attention();
  const at::Tensor pooled = text_encoder_(clip_ids, attend).pooler_output;
  const at::Tensor tokens = text_encoder_2_(t5_ids, attend).to(text_encoder_2_.dtype());
  return {.tokens = tokens.repeat_interleave(copies, 0),
          .pooled = pooled.to(text_encoder_.dtype()).repeat_interleave(copies, 0)};
}

}  // namespace cachedit::pipelines
