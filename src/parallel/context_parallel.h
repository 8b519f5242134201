// Attention over tokens that several ranks hold parts of: wrappers around any other attention, and
// around each other (USP is Ulysses around Ring).
//
// Every rank calls with its own tokens' query, key and value [B, N_r, H, D], all heads, where N_r
// is this rank's entry of the lengths that every rank knows (it may be 0), and gets its own tokens'
// rows. Keys count in the order of the ranks; with text and image tokens that is text 0, image 0,
// text 1, image 1. is_causal is refused, since the order of tokens is not that.
//
// A mask is either
//   for keys alone, [N_r], [B, N_r] or [B|1, 1, 1, N_r]: which of this rank's keys take part, or
//   queries by keys, [B|1, H|1, N_r, N]: this rank's queries as rows, the keys of all ranks (of all
//   sequence ranks where wrappers nest) as columns.
// All ranks give the same form, or none. The backend inside must take masks under context
// parallelism (Capabilities::mask_under_context_parallelism), or refuses.
//
// What an inner attention gets. From Ulysses: the tokens of its whole group, this rank's heads; a
// mask for keys gathered to the group's keys, one of queries by keys gathered to the group's
// queries, with this rank's heads, all columns. So Ring's rules hold for a Ring inside Ulysses,
// whose lengths are the sums of the ring ranks' Ulysses groups. From Ring: one rank's keys at a
// time with their part of the mask, or, with kAllGather, all at once.
//
// With one rank a wrapper hands the call on as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "comm/communicator.h"

namespace cachedit::parallel {

struct UlyssesOptions {
  /// Heads and tokens need not divide; some ranks then have one more. Without it they must.
  bool anything = false;
  /// Query, value and output travel as float8 e4m3 with an fp32 scale for each token and head; keys
  /// do not, since their outliers would cost accuracy.
  bool float8 = false;
  /// project_and_attend() sends value and query while the next one is computed, and the output
  /// while `meanwhile` runs. Not with enable_gqa, whose heads must be known before anything is
  /// sent.
  bool async = false;
};

/// What Ulysses demands of a model and a size, for checks before a run. Each throws
/// UnsupportedError naming the numbers and what to do.
/// Heads that do not divide by the ranks: needs `anything`, no `float8` and a head for each rank.
void check_ulysses_heads(int64_t heads, int64_t ranks, const UlyssesOptions& options);
/// Key heads, where they are fewer than the query's, must divide by the ranks.
void check_ulysses_key_heads(int64_t key_heads, int64_t ranks);
/// Tokens of each rank that are not the same: needs `anything`.
void check_ulysses_tokens(const std::vector<int64_t>& lengths, const UlyssesOptions& options);

/// DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509): an all-to-all turns tokens with all
/// heads into all tokens with some heads, and back after attention.
/// `lengths` are the tokens of each rank of `group`. `inner` and `group` must outlive the result.
/// Throws as check_ulysses_tokens(); calls throw as the checks of heads, before anything is sent.
std::unique_ptr<attention::Attention> make_ulysses(const attention::Attention& inner,
                                                   comm::Communicator& group,
                                                   std::vector<int64_t> lengths,
                                                   const UlyssesOptions& options = {});

enum class RingRotateMethod { kP2P, kAllGather };

struct RingOptions {
  RingRotateMethod rotate_method = RingRotateMethod::kP2P;
  /// Partial outputs of 16 bits are merged in fp32, else in the query's dtype (log-sum-exps always
  /// in fp32).
  bool convert_to_fp32 = true;
};

/// Ring Attention (Liu et al. 2023, arXiv 2310.01889): keys and values travel around the ring while
/// each rank attends to those that it has; partial results are merged by their log-sum-exps, so
/// `inner` must give them. kAllGather collects all keys and values first and attends once, with any
/// backend. `inner` and `group` must outlive the result.
std::unique_ptr<attention::Attention> make_ring(const attention::Attention& inner,
                                                comm::Communicator& group,
                                                std::vector<int64_t> lengths,
                                                const RingOptions& options = {});

}  // namespace cachedit::parallel
