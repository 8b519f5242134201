// The character map of a SentencePiece model: a trie from strings to their normal forms, by which
// T5 folds compatibility characters, controls and white space.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/mapped_text.h"

namespace cachedit::text {

class Charsmap {
 public:
  /// `blob` as the model stores it; an empty one changes nothing. Throws ConfigError, starting with
  /// [where], if it is damaged.
  Charsmap(std::string_view where, std::string_view blob);

  /// Maps each grapheme cluster of well-formed UTF-8 text. The reference looks a cluster of fewer
  /// than six bytes up as a whole and takes the shortest entry that begins it, dropping the rest:
  /// a full-width letter loses its combining accent. Larger clusters go character by character.
  MappedText normalize(std::string_view text) const;

 private:
  std::optional<std::string_view> find(std::string_view text) const;

  std::vector<uint32_t> trie_;  ///< a double array as darts-clone lays it out
  std::string forms_;           ///< normal forms, each closed by a zero byte
};

}  // namespace cachedit::text
