#include "text/unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "text/unicode.h"

namespace cachedit::text {
namespace {

// How far below the worst piece an unknown character scores.
constexpr double kUnknownPenalty = 10;
constexpr int64_t kUnreached = -1;

// The best way to reach a byte of the word: by which piece, from where.
struct Node {
  double score = 0;
  int64_t id = kUnreached;
  size_t from = 0;
};

}  // namespace

Unigram::Unigram(std::vector<ScoredPiece> pieces, int64_t unknown_id)
    : pieces_(std::move(pieces)), unknown_id_(unknown_id) {
  double worst = std::numeric_limits<double>::infinity();
  ids_.reserve(pieces_.size());
  for (size_t id = 0; id < pieces_.size(); ++id) {
    ids_.insert_or_assign(pieces_[id].text, static_cast<int64_t>(id));
    longest_ = std::max(longest_, pieces_[id].text.size());
    worst = std::min(worst, pieces_[id].score);
  }
  unknown_score_ = worst - kUnknownPenalty;
}

int64_t Unigram::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

void Unigram::encode(std::string_view word, std::vector<UnigramPiece>& pieces) const {
  std::vector<Node> best(word.size() + 1);
  const auto offer = [&](size_t from, size_t to, int64_t id, double score) {
    const double total = best[from].score + score;
    if (best[to].id == kUnreached || total > best[to].score) best[to] = {total, id, from};
  };
  for (size_t from = 0, after_first = 0; from < word.size(); from = after_first) {
    next_code_point(word, after_first);
    bool covered = false;  // whether some piece is this one character
    for (size_t to = from; to < word.size();) {
      next_code_point(word, to);
      if (to - from > longest_) break;
      const int64_t id = find(word.substr(from, to - from));
      if (id < 0) continue;
      offer(from, to, id, pieces_[static_cast<size_t>(id)].score);
      covered = covered || to == after_first;
    }
    if (!covered) offer(from, after_first, unknown_id_, unknown_score_);
  }

  const size_t first = pieces.size();
  for (size_t to = word.size(); to > 0; to = best[to].from) {
    const bool joins =
        best[to].id == unknown_id_ && pieces.size() > first && pieces.back().id == unknown_id_;
    if (joins) {
      pieces.back().begin = best[to].from;
    } else {
      pieces.push_back({best[to].id, best[to].from});
    }
  }
  std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
}

}  // namespace cachedit::text
