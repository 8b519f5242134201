// Bytes sent, against the papers' formulas: DeepSpeed-Ulysses (arXiv 2309.14509), Ring Attention
// (arXiv 2310.01889), USP (arXiv 2405.07719).
#include <gtest/gtest.h>

#include "parallel/mesh.h"
#include "parts.h"
#include "support/attention_reference.h"
#include "support/rank_threads.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;

constexpr int64_t kBatch = 2, kTokens = 6, kHeads = 24, kWidth = 16;  // tokens of one rank

struct Kind {
  at::ScalarType dtype;
  int64_t bytes;
};
constexpr Kind kKinds[] = {{at::kFloat, 4}, {at::kBFloat16, 2}, {at::kHalf, 2}};

Inputs inputs(int64_t ranks, at::ScalarType dtype) {
  Inputs in = whole_inputs({.tokens = kTokens * ranks,
                            .heads = kHeads,
                            .batch = kBatch,
                            .head_dim = kWidth,
                            .dtype = dtype});
  in.return_lse = false;
  return in;
}

std::vector<int64_t> even(int64_t ranks) {
  return std::vector<int64_t>(static_cast<size_t>(ranks), kTokens);
}

/// Expects that on every rank.
void expect_traffic(int64_t ranks, const Inputs& whole, const RankCall& call, int64_t bytes,
                    int64_t messages) {
  test::run_ranks(ranks, [&](comm::Communicator& group) {
    const Inputs part = part_of(whole, even(ranks), group.rank());
    group.reset_traffic();
    call(group, part);
    EXPECT_EQ(group.traffic().bytes_sent, bytes) << group.rank();
    EXPECT_EQ(group.traffic().messages_sent, messages) << group.rank();
  });
}

TEST(Traffic, UlyssesSendsFourTensorsButForItsOwnShare) {
  const auto native = backend("native");
  for (const Kind& kind : kKinds) {
    for (const int64_t n : {1, 2, 3, 4, 6, 8}) {
      const int64_t tensor = kBatch * kTokens * kHeads * kWidth * kind.bytes;
      expect_traffic(n, inputs(n, kind.dtype), ulysses_call(*native, even(n)),
                     4 * tensor * (n - 1) / n, 4 * (n - 1));
    }
  }
}

TEST(Traffic, RingSendsKeyAndValueAllTheWay) {
  const auto native = backend("native");
  for (const Kind& kind : kKinds) {
    for (const int64_t n : {1, 2, 3, 4}) {
      for (const auto method : {RingRotateMethod::kP2P, RingRotateMethod::kAllGather}) {
        const int64_t tensor = kBatch * kTokens * kHeads * kWidth * kind.bytes;
        expect_traffic(n, inputs(n, kind.dtype),
                       ring_call(*native, even(n), {.rotate_method = method}), 2 * tensor * (n - 1),
                       2 * (n - 1));
      }
    }
  }
}

// After the exchange a rank has ulysses times the tokens and one ulysses-th of the heads, so Ring's
// part is as without Ulysses, with fewer ranks.
TEST(Traffic, UspAddsBoth) {
  const auto native = backend("native");
  for (const auto& [r, u] : {std::pair{2, 2}, std::pair{2, 3}, std::pair{4, 2}}) {
    const int64_t tensor = kBatch * kTokens * kHeads * kWidth * 4;
    expect_traffic(r * u, inputs(r * u, at::kFloat),
                   usp_call(*native, even(r * u), {.ring = r, .ulysses = u}),
                   4 * tensor * (u - 1) / u + 2 * tensor * (r - 1), 4 * (u - 1) + 2 * (r - 1));
  }
}

// Query, value and output: D + 4 bytes for each token and head, in one message. The key: as it is.
TEST(Traffic, Float8SendsScalesAlong) {
  const auto native = backend("native");
  for (const Kind& kind : kKinds) {
    for (const int64_t n : {2, 3}) {
      const int64_t rows = kBatch * kTokens * kHeads;
      const int64_t bytes = rows * (3 * (kWidth + 4) + kWidth * kind.bytes);
      expect_traffic(n, inputs(n, kind.dtype), ulysses_call(*native, even(n), {.float8 = true}),
                     bytes * (n - 1) / n, 4 * (n - 1));
    }
  }
}

// Grouped heads: keys and values have fewer. The lse: four bytes for each token and head.
TEST(Traffic, GroupedHeadsAndLogSumExp) {
  const auto native = backend("native");
  Inputs whole = whole_inputs(
      {.tokens = 2 * kTokens, .heads = kHeads, .kv_heads = 8, .batch = kBatch, .head_dim = kWidth});
  const int64_t rows = kBatch * kTokens;
  expect_traffic(2, whole, ulysses_call(*native, even(2)),
                 rows * ((2 * kHeads + 2 * 8) * kWidth + kHeads) * 4 / 2, 5);
  expect_traffic(2, whole, ring_call(*native, even(2)), rows * 2 * 8 * kWidth * 4, 2);
}

TEST(Traffic, MasksTravelByTheByte) {
  const auto native = backend("native");
  Inputs whole = inputs(2, at::kFloat);
  const int64_t tensor = kBatch * kTokens * kHeads * kWidth * 4, keys = 2 * kTokens;
  whole.mask = test::seeded_bool({kBatch, keys}, 0.5, 1);
  expect_traffic(2, whole, ulysses_call(*native, even(2)), 2 * tensor + kBatch * kTokens, 5);
  expect_traffic(2, whole, ring_call(*native, even(2)), 2 * tensor + kBatch * kTokens, 3);
  whole.mask = test::seeded_bool({kBatch, kHeads, keys, keys}, 0.5, 1);
  expect_traffic(2, whole, ulysses_call(*native, even(2)),
                 2 * tensor + kBatch * kHeads / 2 * kTokens * keys, 5);
  expect_traffic(2, whole, ring_call(*native, even(2)), 2 * tensor, 2);
}

}  // namespace
}  // namespace cachedit::parallel
