#include <numeric>

#include "base/divisors.h"
#include "base/fail.h"
#include "parallel/context_parallel.h"

namespace cachedit::parallel {
namespace {

std::string divisors(int64_t number) { return divisors_text(number, "none"); }

}  // namespace

void check_ulysses_heads(int64_t heads, int64_t ranks, const UlyssesOptions& options) {
  if (ranks == 1 || heads % ranks == 0) return;
  const std::string sizes = c10::str("ulysses sizes that divide ", heads, ": ", divisors(heads));
  if (heads < ranks) {
    fail<UnsupportedError>("ulysses", "each rank needs a head of its own: got ", heads,
                           " heads and ", ranks, " ranks; take fewer (", sizes,
                           "; with --ulysses-anything all up to ", heads, ")");
  }
  if (options.float8) {
    fail<UnsupportedError>("ulysses", "with float8, heads must divide by the ranks: got ", heads,
                           " heads and ", ranks, " ranks; leave --ulysses-float8 out, or take ",
                           sizes);
  }
  if (!options.anything) {
    fail<UnsupportedError>("ulysses", "heads must divide by the ranks: got ", heads, " heads and ",
                           ranks, " ranks; add --ulysses-anything, or take ", sizes);
  }
}

void check_ulysses_key_heads(int64_t key_heads, int64_t ranks) {
  if (key_heads % ranks == 0) return;
  fail<UnsupportedError>("ulysses",
                         "with enable_gqa the key's heads must divide by the ranks, so that each "
                         "rank has whole groups: got ",
                         key_heads, " key heads and ", ranks,
                         " ranks; take ulysses sizes that divide ", key_heads, ": ",
                         divisors(key_heads));
}

void check_ulysses_tokens(const std::vector<int64_t>& lengths, const UlyssesOptions& options) {
  const bool even = std::all_of(lengths.begin(), lengths.end(),
                                [&](int64_t length) { return length == lengths.front(); });
  if (even || options.anything) return;
  fail<UnsupportedError>("ulysses", "tokens must divide by the ranks: got ",
                         std::accumulate(lengths.begin(), lengths.end(), int64_t{0}),
                         " tokens and ", lengths.size(), " ranks, which have ", lengths,
                         "; add --ulysses-anything, or take another size");
}

}  // namespace cachedit::parallel
