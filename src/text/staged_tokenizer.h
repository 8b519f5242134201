// The stages that all tokenizers share: added tokens are cut out, the rest is normalised and split
// by an algorithm, the result is truncated, framed by special tokens and padded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/mapped_text.h"
#include "text/tokenizer.h"

namespace cachedit::text {

/// A token and the byte at which it begins.
struct TextToken {
  int64_t id;
  size_t begin;
};

/// What differs between kinds of tokenizers. Implementations are immutable.
class TokenAlgorithm {
 public:
  virtual ~TokenAlgorithm() = default;
  virtual MappedText normalize(std::string_view text) const = 0;
  /// Appends the tokens of normalised text; `begin` counts in that text.
  virtual void tokenize(std::string_view normalized, std::vector<TextToken>& tokens) const = 0;
};

struct Framing {
  std::string where;            ///< names the tokenizer in error texts
  std::vector<int64_t> prefix;  ///< ids before the text
  std::vector<int64_t> suffix;  ///< ids after the text
  int64_t padding = 0;          ///< the id that fills up to max_length
  int64_t model_max_length = 0;
};

class StagedTokenizer : public Tokenizer {
 public:
  /// Normalises the content of those `added` tokens that are searched in normalised text.
  StagedTokenizer(std::unique_ptr<TokenAlgorithm> algorithm, const std::vector<AddedToken>& added,
                  Framing framing);

  Encoding encode(std::string_view text, int64_t max_length) const override;
  int64_t model_max_length() const override { return framing_.model_max_length; }

 private:
  std::vector<TextToken> tokenize(std::string_view text) const;
  void tokenize_plain(std::string_view text, size_t begin, std::vector<TextToken>& tokens) const;
  void check(std::string_view text, int64_t max_length) const;

  std::unique_ptr<TokenAlgorithm> algorithm_;
  AddedTokenFinder raw_;
  AddedTokenFinder normalized_;
  Framing framing_;
};

}  // namespace cachedit::text
