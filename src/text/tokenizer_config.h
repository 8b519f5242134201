// The settings beside a vocabulary: special and added tokens, lengths, from
// tokenizer_config.json, special_tokens_map.json, added_tokens.json and tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"

namespace cachedit::text {

struct TokenizerConfig {
  std::string where;                         ///< the file or folder to name in error texts
  std::map<std::string, std::string> named;  ///< "eos_token" and so on, to the token's text
  std::vector<AddedToken> added;             ///< every token to look for; id -1 where none is given
  int64_t model_max_length = 0;
  std::optional<int64_t> extra_ids;
};

/// What a tokenizer class assumes where the files say nothing.
struct TokenizerDefaults {
  std::string_view class_name;  ///< without "Fast"
  std::map<std::string, std::string>
      named;  ///< the special tokens that the class cannot do without
};

/// Reads the files that are there, with the precedence that transformers 5 gives them. Throws
/// ConfigError for malformed values and UnsupportedError for settings that would change the ids in
/// ways that are not implemented (left padding or truncation, splitting of special tokens).
TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder,
                                      const TokenizerDefaults& defaults);

/// Gives each added token its id: the vocabulary's or, for a token that the vocabulary lacks, the
/// next free one. Throws ConfigError if the config declared another, or if a special token that the
/// class needs is not in the vocabulary.
void resolve_ids(TokenizerConfig& config, const TokenizerDefaults& defaults,
                 int64_t vocabulary_size,
                 const std::function<std::optional<int64_t>(const std::string&)>& find_id);

}  // namespace cachedit::text
