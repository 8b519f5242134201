#include "text/bpe.h"

#include <queue>

#include "base/fail.h"
#include "text/byte_level.h"

namespace cachedit::text {
namespace {

uint64_t pair_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

uint32_t id_of(std::string_view where, const Vocabulary& vocabulary, const std::string& token,
               std::string_view role) {
  const auto found = vocabulary.find(token);
  if (found == vocabulary.end()) {
    fail<ConfigError>(where, role, " must be in the vocabulary: got '", token,
                      "'; use the vocabulary and the merges of one model");
  }
  return static_cast<uint32_t>(found->second);
}

// A token under construction, linked to its neighbours.
struct Symbol {
  uint32_t id;
  uint32_t begin;
  int64_t previous;
  int64_t next;
  bool alive = true;
};

// A pair that may be joined. Lower ranks come first, then earlier places.
struct Candidate {
  uint32_t rank;
  uint32_t result;
  int64_t left;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

Bpe::Bpe(std::string_view where, const Vocabulary& vocabulary, const Merges& merges,
         const BpeOptions& options) {
  const uint32_t unknown = id_of(where, vocabulary, options.unknown, "the unknown token");
  const auto alphabet = byte_level_alphabet();
  for (size_t byte = 0; byte < alphabet.size(); ++byte) {
    const auto id_or_unknown = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      return found == vocabulary.end() ? unknown : static_cast<uint32_t>(found->second);
    };
    inner_[byte] = id_or_unknown(alphabet[byte]);
    final_[byte] = id_or_unknown(alphabet[byte] + options.end_of_word);
  }
  merges_.reserve(merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : merges) {
    const uint32_t left_id = id_of(where, vocabulary, left, "the left part of a merge");
    const uint32_t right_id = id_of(where, vocabulary, right, "the right part of a merge");
    const uint32_t result = id_of(where, vocabulary, left + right, "the result of a merge");
    merges_.insert_or_assign(pair_key(left_id, right_id), Merge{rank++, result});
  }
}

const Bpe::Merge* Bpe::find_merge(uint32_t left, uint32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<BpePiece>& pieces) const {
  if (word.empty()) return;
  const auto count = static_cast<int64_t>(word.size());
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<size_t>(i)]);
    const bool last = i + 1 == count;
    symbols.push_back({.id = last ? final_[byte] : inner_[byte],
                       .begin = static_cast<uint32_t>(i),
                       .previous = i - 1,
                       .next = last ? -1 : i + 1});
  }

  std::priority_queue<Candidate> queue;
  const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto offer = [&](int64_t left) {
    if (left < 0 || at(left).next < 0) return;
    if (const Merge* merge = find_merge(at(left).id, at(at(left).next).id)) {
      queue.push({merge->rank, merge->result, left});
    }
  };
  for (int64_t i = 0; i + 1 < count; ++i) offer(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = at(best.left);
    if (!left.alive || left.next < 0) continue;
    Symbol& right = at(left.next);
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->result != best.result) continue;  // a neighbour changed
    left.id = best.result;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) at(left.next).previous = best.left;
    offer(left.previous);
    offer(best.left);
  }
  for (int64_t i = 0; i >= 0; i = at(i).next) pieces.push_back({at(i).id, at(i).begin});
}

}  // namespace cachedit::text
