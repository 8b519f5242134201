// Unigram segmentation: the split of a word into pieces of the greatest total score.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cachedit::text {

struct ScoredPiece {
  std::string text;
  double score = 0;
};

/// A piece of a word: its id, and the byte of the word at which it begins.
struct UnigramPiece {
  int64_t id;
  size_t begin;
};

class Unigram {
 public:
  /// Ids count from 0 in the order of `pieces`; where two have the same text, the later one is
  /// found. Characters that no piece covers become `unknown_id`, one for each run of them.
  Unigram(std::vector<ScoredPiece> pieces, int64_t unknown_id);
  Unigram(Unigram&&) = default;
  Unigram(const Unigram&) = delete;  ///< ids_ looks into pieces_

  /// Appends the pieces of one word (well-formed UTF-8). Between equal totals the split that was
  /// found first stays; totals are summed in double precision from left to right, on which the
  /// choice between near-equal splits depends.
  void encode(std::string_view word, std::vector<UnigramPiece>& pieces) const;

  /// The id of a piece, -1 if there is none.
  int64_t find(std::string_view piece) const;
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }

 private:
  std::vector<ScoredPiece> pieces_;
  std::unordered_map<std::string_view, int64_t> ids_;  ///< views into pieces_
  size_t longest_ = 0;                                 ///< bytes of the longest piece
  int64_t unknown_id_;
  double unknown_score_;
};

}  // namespace cachedit::text
