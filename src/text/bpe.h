// Byte-level byte-pair encoding of single words, as CLIP, GPT-2 and Qwen use it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace cachedit::text {

using Vocabulary = std::unordered_map<std::string, int64_t>;
/// Pairs of tokens to join, most urgent first.
using Merges = std::vector<std::pair<std::string, std::string>>;

struct BpeOptions {
  std::string end_of_word;  ///< what the vocabulary appends to the last character of a word
  std::string unknown;      ///< the token for a byte that the vocabulary lacks; must be in it
};

/// A token of a word: its id, and the byte of the word at which it begins.
struct BpePiece {
  int64_t id;
  size_t begin;
};

class Bpe {
 public:
  /// Throws ConfigError, starting with [where], if the vocabulary lacks the unknown token, a
  /// part of a merge or its result.
  Bpe(std::string_view where, const Vocabulary& vocabulary, const Merges& merges,
      const BpeOptions& options);

  /// Appends the tokens of one word. Takes O(n log n) for n bytes.
  void encode(std::string_view word, std::vector<BpePiece>& pieces) const;

 private:
  struct Merge {
    uint32_t rank;
    uint32_t result;
  };
  const Merge* find_merge(uint32_t left, uint32_t right) const;

  std::array<uint32_t, 256> inner_;  ///< the id of a byte inside a word
  std::array<uint32_t, 256> final_;  ///< the id of a byte that ends one
  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace cachedit::text
