// Ulysses around Ring against one rank.
#include <gtest/gtest.h>

#include "parallel/sequence.h"
#include "parts.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;

TEST(Usp, EqualsOneRank) {
  const auto native = backend("native");
  for (const auto& [ring, ulysses] :
       {std::pair{2, 2}, std::pair{2, 3}, std::pair{3, 2}, std::pair{4, 2}, std::pair{2, 4}}) {
    for (const int64_t heads : {5, 24}) {
      for (const int64_t batch : {1, 2}) {
        for (const auto method : {RingRotateMethod::kP2P, RingRotateMethod::kAllGather}) {
          SCOPED_TRACE(c10::str("ring ", ring, ", ulysses ", ulysses, ", heads ", heads));
          const Inputs whole = whole_inputs({.tokens = 37, .heads = heads, .batch = batch});
          const std::vector<int64_t> lengths = split_lengths(37, ring * ulysses);
          expect_as_one_rank(
              whole, lengths,
              usp_call(
                  *native, lengths,
                  {.ring = ring, .ulysses = ulysses, .ring_options = {.rotate_method = method}}));
        }
      }
    }
  }
}

TEST(Usp, OneOfTheTwoMayBeOne) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 13, .heads = 5});
  const std::vector<int64_t> lengths = split_lengths(13, 3);
  expect_as_one_rank(whole, lengths, usp_call(*native, lengths, {.ring = 3}));
  expect_as_one_rank(whole, lengths, usp_call(*native, lengths, {.ulysses = 3}));
}

TEST(Usp, FewerTokensThanRanks) {
  const auto native = backend("native");
  for (const int64_t tokens : {1, 2, 3}) {
    const Inputs whole = whole_inputs({.tokens = tokens, .heads = 2});
    const std::vector<int64_t> lengths = split_lengths(tokens, 4);
    expect_as_one_rank(whole, lengths, usp_call(*native, lengths, {.ring = 2, .ulysses = 2}));
  }
}

TEST(Usp, GroupedHeadsAndFloat8) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 11, .heads = 8, .kv_heads = 4});
  const std::vector<int64_t> lengths = split_lengths(11, 4);
  UspOptions options{.ring = 2, .ulysses = 2};
  expect_as_one_rank(whole, lengths, usp_call(*native, lengths, options));
  options.ulysses_options.float8 = true;
  EXPECT_GE(test::cosine(gathered_out(whole, lengths, usp_call(*native, lengths, options)),
                         (*native)(whole).out),
            0.998);
}

}  // namespace
}  // namespace cachedit::parallel
