// Masks of every kind through the wrappers and their nesting, against one rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "parallel/sequence.h"
#include "parts.h"
#include "support/attention_reference.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct Wrapper {
  std::string name;
  int64_t ranks;
  std::function<RankCall(const attention::Attention&, const std::vector<int64_t>&)> make;
};

std::vector<Wrapper> wrappers() {
  std::vector<Wrapper> all;
  for (const int64_t ranks : {2, 3}) {
    all.push_back({c10::str("ulysses ", ranks), ranks, [](const auto& inner, const auto& lengths) {
                     return ulysses_call(inner, lengths, {.anything = true});
                   }});
    for (const auto method : {RingRotateMethod::kP2P, RingRotateMethod::kAllGather}) {
      all.push_back(
          {c10::str("ring ", ranks), ranks, [method](const auto& inner, const auto& lengths) {
             return ring_call(inner, lengths, {.rotate_method = method});
           }});
    }
  }
  for (const auto& [ring, ulysses] : {std::pair{2, 2}, std::pair{2, 3}}) {
    for (const auto method : {RingRotateMethod::kP2P, RingRotateMethod::kAllGather}) {
      all.push_back(
          {c10::str("usp ", ring, " x ", ulysses), ring * ulysses,
           [=](const auto& inner, const auto& lengths) {
             return usp_call(
                 inner, lengths,
                 {.ring = ring, .ulysses = ulysses, .ring_options = {.rotate_method = method}});
           }});
    }
  }
  return all;
}

void expect_right_everywhere(const Inputs& whole, const std::string& kind) {
  const auto native = backend("native");
  for (const Wrapper& wrapper : wrappers()) {
    SCOPED_TRACE(wrapper.name + ", " + kind);
    const std::vector<int64_t> lengths = split_lengths(whole.query.size(1), wrapper.ranks);
    expect_as_one_rank(whole, lengths, wrapper.make(*native, lengths));
  }
}

const std::vector<std::vector<int64_t>>& shapes() {
  static const std::vector<std::vector<int64_t>> all = {
      {13},           {2, 13},        {2, 1, 1, 13}, {1, 1, 1, 13},
      {2, 1, 13, 13}, {2, 3, 13, 13}, {3, 13, 13},   {1, 3, 13, 13}};
  return all;
}

Inputs inputs() { return whole_inputs({.tokens = 13, .heads = 3, .batch = 2}); }

TEST(Masks, BoolOfEveryShape) {
  Inputs whole = inputs();
  for (const std::vector<int64_t>& shape : shapes()) {
    whole.mask = test::seeded_bool(shape, 0.6, 11);
    expect_right_everywhere(whole, c10::str("bool ", shape));
  }
}

TEST(Masks, FloatOfEveryShape) {
  Inputs whole = inputs();
  for (const std::vector<int64_t>& shape : shapes()) {
    whole.mask = test::seeded_normal(shape, at::kFloat, 12);
    whole.mask.masked_fill_(test::seeded_bool(shape, 0.2, 13), kMinusInfinity);
    expect_right_everywhere(whole, c10::str("float ", shape));
  }
}

// A row without any key gives zeros and -inf; a rank whose keys are all left out changes nothing.
TEST(Masks, RowsAndRanksWithoutKeys) {
  Inputs whole = inputs();
  whole.mask = test::seeded_bool({2, 3, 13, 13}, 0.6, 14);
  whole.mask.select(2, 4).fill_(false);
  whole.mask.select(2, 12).fill_(false);
  whole.mask.slice(3, 0, 7).slice(2, 0, 3).fill_(false);
  expect_right_everywhere(whole, "rows");
  whole.mask = at::ones({2, 13}, at::kBool);
  whole.mask.slice(1, 4, 13).fill_(false);
  expect_right_everywhere(whole, "only the first rank's keys");
  whole.mask.select(0, 0).fill_(false);
  expect_right_everywhere(whole, "no key in the first of the batch");
  whole.mask.fill_(false);
  expect_right_everywhere(whole, "no key at all");
}

TEST(Masks, AllTrueOnSomeRanksOnly) {
  Inputs whole = inputs();
  whole.mask = at::ones({2, 13}, at::kBool);
  expect_right_everywhere(whole, "all true");
  whole.mask.select(1, 12).fill_(false);
  expect_right_everywhere(whole, "but the last");
}

TEST(Masks, GroupedHeads) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 9, .heads = 8, .kv_heads = 4, .batch = 2});
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{2, 9}, {2, 8, 9, 9}, {1, 1, 9, 9}}) {
    whole.mask = test::seeded_bool(shape, 0.6, 15);
    expect_as_one_rank(whole, {5, 4}, ulysses_call(*native, {5, 4}, {.anything = true}));
    expect_as_one_rank(whole, {3, 2, 2, 2},
                       usp_call(*native, {3, 2, 2, 2}, {.ring = 2, .ulysses = 2}));
  }
}

TEST(Masks, SixteenBits) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 9, .heads = 2, .dtype = at::kBFloat16});
  whole.mask = test::seeded_normal({1, 2, 9, 9}, at::kBFloat16, 16);
  expect_as_one_rank(whole, {5, 4}, ulysses_call(*native, {5, 4}, {.anything = true}), 2e-2,
                     kLse16Bit);
  expect_as_one_rank(whole, {5, 4}, ring_call(*native, {5, 4}), 2e-2, kLse16Bit);
}

// Ranks with one token or none: a mask's shape still tells its form.
TEST(Masks, FewTokens) {
  for (const int64_t tokens : {1, 2, 3, 5}) {
    Inputs whole = whole_inputs({.tokens = tokens, .heads = 3, .batch = 2});
    whole.mask = test::seeded_bool({2, tokens}, 0.6, 17);
    expect_right_everywhere(whole, c10::str("keys, ", tokens));
    whole.mask = test::seeded_bool({2, 1, tokens, tokens}, 0.6, 18);
    if (tokens > 1) expect_right_everywhere(whole, c10::str("rows, ", tokens));
  }
}

// The one case in which both forms have one shape on the rank that has a token.
TEST(Masks, OneTokenInAll) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 1, .heads = 3});
  for (const bool takes_part : {true, false}) {
    whole.mask = at::ones({1, 1, 1, 1}, at::kBool).fill_(takes_part);
    for (const Wrapper& wrapper : wrappers()) {
      SCOPED_TRACE(wrapper.name);
      const std::vector<int64_t> lengths = split_lengths(1, wrapper.ranks);
      const RankCall call = wrapper.make(*native, lengths);
      // As rows: ranks without a token have a mask without rows.
      expect_as_one_rank(whole, lengths, [&](comm::Communicator& group, const Inputs& part) {
        Inputs rows = part;
        rows.mask = whole.mask.narrow(2, 0, part.query.size(1));
        call(group, rows);  // what one rank sends and the other does not expect would show later
        return call(group, rows);
      });
    }
  }
}

// FR-02 (c): after the exchange the order is text 0, image 0, text 1, image 1.
TEST(Masks, TextAndImageTokensKeepTheirMasks) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 10, .heads = 2, .batch = 2});
  at::Tensor keys = test::seeded_bool({2, 10}, 0.5, 19);
  keys.select(1, 0).fill_(true);
  for (const bool ulysses : {true, false}) {
    for (const bool rows : {false, true}) {
      SCOPED_TRACE(c10::str(ulysses ? "ulysses" : "ring", rows ? ", rows" : ", keys"));
      whole.mask = rows ? test::seeded_bool({2, 1, 10, 10}, 0.5, 20) : keys;
      const at::Tensor want = (*native)(whole).out;
      test::run_ranks(2, [&](comm::Communicator& group) {
        const SequenceSplit text(group, 4), image(group, 6);
        /// This rank's part of a tensor whose dimension has the text tokens, then the image's.
        const auto part = [&](const at::Tensor& t, int64_t dim) {
          return at::cat(
              {text.take(t.narrow(dim, 0, 4), dim), image.take(t.narrow(dim, 4, 6), dim)}, dim);
        };
        Inputs in{.query = part(whole.query, 1),
                  .key = part(whole.key, 1),
                  .value = part(whole.value, 1)};
        if (rows) {
          const std::vector<at::Tensor> order = {
              whole.mask.slice(3, 0, 2), whole.mask.slice(3, 4, 7), whole.mask.slice(3, 2, 4),
              whole.mask.slice(3, 7, 10)};
          in.mask = part(at::cat(order, 3), 2);
        } else {
          in.mask = part(whole.mask, 1);
        }
        const std::vector<int64_t> lengths = joint_lengths({&text, &image});
        const auto wrapped =
            ulysses ? make_ulysses(*native, group, lengths) : make_ring(*native, group, lengths);
        EXPECT_LE(test::max_abs_error((*wrapped)(in).out, part(want, 1)), 1e-5);
      });
    }
  }
}

}  // namespace
}  // namespace cachedit::parallel
