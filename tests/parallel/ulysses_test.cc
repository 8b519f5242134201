// Ulysses against one rank.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cachedit/error.h"
#include "parallel/context_parallel.h"
#include "parallel/sequence.h"
#include "parts.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr UlyssesOptions kAnything{.anything = true};

TEST(Ulysses, EqualsOneRankForAnyHeadsAndTokens) {
  const auto native = backend("native");
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    for (const int64_t heads : {3, 5, 24}) {
      if (heads < ranks) continue;
      for (const int64_t batch : {1, 2}) {
        SCOPED_TRACE(c10::str(heads, " heads, batch ", batch));
        Inputs whole = whole_inputs({.tokens = 37, .heads = heads, .batch = batch});
        const std::vector<int64_t> lengths = split_lengths(37, ranks);
        expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths, kAnything));
        whole.return_lse = false;
        expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths, kAnything));
      }
    }
  }
}

TEST(Ulysses, PlainTakesWhatDivides) {
  const auto native = backend("native");
  for (const int64_t ranks : {2, 3, 4, 6, 8}) {
    const Inputs whole = whole_inputs({.tokens = 5 * ranks, .heads = 24});
    const std::vector<int64_t> lengths = split_lengths(5 * ranks, ranks);
    expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths));
  }
}

// Text and image parts need not be split alike.
TEST(Ulysses, TakesAnyLengths) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 12, .heads = 5, .batch = 2});
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {7, 5}, {1, 11}, {0, 12}, {12, 0}, {0, 0, 12}, {3, 0, 9}, {4, 0, 0, 8}}) {
    expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths, kAnything));
  }
}

TEST(Ulysses, FewerTokensThanRanks) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 2, .heads = 5});
  const std::vector<int64_t> lengths = split_lengths(2, 4);
  expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths, kAnything));
}

TEST(Ulysses, GroupedHeadsStayTogether) {
  const auto native = backend("native");
  for (const int64_t batch : {1, 2}) {
    const Inputs whole = whole_inputs({.tokens = 11, .heads = 12, .kv_heads = 4, .batch = batch});
    for (const int64_t ranks : {2, 4}) {
      const std::vector<int64_t> lengths = split_lengths(11, ranks);
      expect_as_one_rank(whole, lengths, ulysses_call(*native, lengths, kAnything));
    }
  }
  const Inputs even = whole_inputs({.tokens = 8, .heads = 12, .kv_heads = 4});
  expect_as_one_rank(even, {4, 4}, ulysses_call(*native, {4, 4}));
}

TEST(Ulysses, ReadsEveryLayout) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 9, .heads = 5, .batch = 2});
  for (at::Tensor* t : {&whole.query, &whole.key, &whole.value}) {
    *t = t->transpose(1, 2).contiguous().transpose(1, 2);
  }
  whole.scale = 0.7;
  expect_as_one_rank(whole, {5, 4}, ulysses_call(*native, {5, 4}, kAnything));
}

TEST(Ulysses, BackendsAndDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Inputs whole = whole_inputs({.tokens = 70, .heads = 5, .head_dim = 64, .dtype = dtype});
    for (const char* name : {"native", "flash", "ffpa", "sage"}) {
      SCOPED_TRACE(c10::str(name, " ", dtype));
      const auto inner = backend(name);
      // The kernel sees other heads, but each of them whole.
      const at::Tensor want = (*inner)(whole).out;
      const std::vector<int64_t> lengths = split_lengths(70, 3);
      const at::Tensor got = gathered_out(whole, lengths, ulysses_call(*inner, lengths, kAnything));
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_LE(test::max_abs_error(got, want), dtype == at::kFloat ? 1e-6 : 1e-2);
      EXPECT_GE(test::cosine(got, (*backend("native"))(whole).out), 0.999);
    }
  }
}

TEST(Ulysses, NamesTheBackend) {
  const auto inner = backend("flash");
  const Inputs whole = whole_inputs({.tokens = 4, .heads = 2});
  test::run_ranks(2, [&](comm::Communicator& group) {
    const Inputs part = part_of(whole, {2, 2}, group.rank());
    EXPECT_EQ((*make_ulysses(*inner, group, {2, 2}))(part).backend, "flash");
  });
}

// FR-16: requests of several lengths one after the other, every rank with its own part's length.
TEST(Ulysses, RequestsOfSeveralLengthsFollowEachOther) {
  const auto native = backend("native");
  std::vector<Inputs> requests;
  std::vector<at::Tensor> want;
  for (const int64_t tokens : {9, 10, 9, 11}) {
    requests.push_back(whole_inputs({.tokens = tokens, .heads = 3}));
    want.push_back((*native)(requests.back()).out);
  }
  test::run_ranks(2, [&](comm::Communicator& group) {
    std::vector<int64_t> local;
    for (size_t i = 0; i < requests.size(); ++i) {
      const SequenceSplit split(group, requests[i].query.size(1));
      local.push_back(split.local());
      const auto wrapped = make_ulysses(*native, group, split.lengths(), kAnything);
      const Inputs part = part_of(requests[i], split.lengths(), group.rank());
      EXPECT_LE(test::max_abs_error(split.gather((*wrapped)(part).out, 1), want[i]), 1e-5);
    }
    EXPECT_EQ(local, group.rank() == 0 ? (std::vector<int64_t>{5, 5, 5, 6})
                                       : (std::vector<int64_t>{4, 5, 4, 5}));
  });
}

TEST(Ulysses, Float8IsClose) {
  const auto native = backend("native");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    Inputs whole =
        whole_inputs({.tokens = 41, .heads = 6, .batch = 2, .head_dim = 32, .dtype = dtype});
    const std::vector<int64_t> lengths = split_lengths(41, 3);
    UlyssesOptions options{.anything = true, .float8 = true};
    const at::Tensor got = gathered_out(whole, lengths, ulysses_call(*native, lengths, options));
    const at::Tensor want = (*native)(whole).out;
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_GE(test::cosine(got, want), 0.998) << dtype;
    EXPECT_GT(test::relative_error(got, want), 5e-3) << dtype << ": it did travel in 8 bits";
  }
}

// Keys travel as they are, and values of a row of zeros stay zeros.
TEST(Ulysses, Float8LeavesKeysAlone) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 8, .heads = 2});
  whole.query.zero_();
  whole.value.fill_(448);
  whole.key.select(1, 3).fill_(1e30);
  UlyssesOptions options{.float8 = true};
  const at::Tensor got = gathered_out(whole, {4, 4}, ulysses_call(*native, {4, 4}, options));
  EXPECT_EQ(test::max_abs_error(got, whole.value), 0) << "448 and 0 have exact e4m3 numbers";
  whole.value.zero_();
  EXPECT_EQ(
      gathered_out(whole, {4, 4}, ulysses_call(*native, {4, 4}, options)).abs().max().item<float>(),
      0);
}

// With one rank the call goes on as it is, float8, causal and all.
TEST(Ulysses, OneRankIsTheInnerAttention) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 7, .heads = 3});
  whole.is_causal = true;
  UlyssesOptions options{.float8 = true, .async = true};
  expect_as_one_rank(whole, {7}, ulysses_call(*native, {7}, options), 0);
}

}  // namespace
}  // namespace cachedit::parallel
