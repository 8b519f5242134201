// Tokens that are found in the text as they are written, before (or, for some, after) it is
// normalised: "</s>" in a prompt is the end-of-text token, not five characters.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::text {

struct AddedToken {
  std::string content;
  int64_t id = -1;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< swallows white space before it
  bool rstrip = false;       ///< swallows white space after it
  bool normalized = false;   ///< is searched in the normalised text, in its normalised form
};

/// A stretch of text: plain when it has no id.
struct TextSpan {
  size_t begin;
  size_t end;
  std::optional<int64_t> id;
};

class AddedTokenFinder {
 public:
  /// Tokens of empty content are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// Cuts `text` (well-formed UTF-8) at the tokens in it, from left to right, the longest first
  /// where several begin at one place. The spans cover the text; none is empty.
  std::vector<TextSpan> split(std::string_view text) const;

 private:
  const AddedToken* match(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;  ///< longest first
  std::array<bool, 256> starts_{};  ///< whether a token begins with this byte
};

}  // namespace cachedit::text
