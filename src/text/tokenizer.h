// What a pipeline asks of a tokenizer, whatever its algorithm.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::text {

struct Encoding {
  std::vector<int64_t> ids;  ///< exactly max_length: special tokens added, cut, padded
  int64_t used = 0;          ///< ids before the padding
  std::string cut;           ///< the text that did not fit, as written; empty when all did
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Throws InputError if `text` is not UTF-8 or above 4 MiB, or if max_length leaves no room for
  /// special tokens or is above 2^20. May exceed model_max_length().
  virtual Encoding encode(std::string_view text, int64_t max_length) const = 0;
  /// From tokenizer_config.json; a very large number where the config sets none.
  virtual int64_t model_max_length() const = 0;
};

/// CLIP's byte-level BPE from a folder with vocab.json, merges.txt and, optionally,
/// tokenizer_config.json and special_tokens_map.json.
/// Throws IoError or ConfigError naming the file.
std::unique_ptr<Tokenizer> load_clip_tokenizer(const std::filesystem::path& folder);

/// T5's SentencePiece unigram model from a folder with spiece.model and, optionally,
/// tokenizer_config.json.
std::unique_ptr<Tokenizer> load_t5_tokenizer(const std::filesystem::path& folder);

}  // namespace cachedit::text
