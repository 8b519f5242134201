// Ring Attention against one rank, and FR-14.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cachedit/error.h"
#include "parallel/sequence.h"
#include "parts.h"
#include "support/attention_reference.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using attention::Result;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What is received may arrive at any time: here NaN is there at once, and the rest later.
class EagerCommunicator final : public comm::Communicator {
 public:
  explicit EagerCommunicator(comm::Communicator& parent) : parent_(parent) {}
  int64_t rank() const override { return parent_.rank(); }
  int64_t size() const override { return parent_.size(); }

 protected:
  comm::Pending start(std::vector<comm::Part> send, std::vector<comm::Part> receive,
                      std::string_view what) override {
    for (comm::Part& part : receive) part.tensor.fill_(std::numeric_limits<float>::quiet_NaN());
    return parent_.exchange(std::move(send), std::move(receive), what);
  }

 private:
  comm::Communicator& parent_;
};

/// A backend that cannot.
class Refusing final : public attention::Attention {
 public:
  Result operator()(const Inputs& /*inputs*/) const override {
    throw UnsupportedError("[attention none] it can do nothing");
  }
};

class Ring : public ::testing::TestWithParam<RingRotateMethod> {
 protected:
  RingOptions options() const { return {.rotate_method = GetParam()}; }
};

TEST_P(Ring, EqualsOneRankForAnyTokens) {
  const auto native = backend("native");
  for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) {
    for (const int64_t heads : {3, 5, 24}) {
      for (const int64_t batch : {1, 2}) {
        SCOPED_TRACE(c10::str(heads, " heads, batch ", batch));
        Inputs whole = whole_inputs({.tokens = 37, .heads = heads, .batch = batch});
        const std::vector<int64_t> lengths = split_lengths(37, ranks);
        expect_as_one_rank(whole, lengths, ring_call(*native, lengths, options()));
        whole.return_lse = false;
        expect_as_one_rank(whole, lengths, ring_call(*native, lengths, options()));
      }
    }
  }
}

TEST_P(Ring, TakesAnyLengths) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 12, .heads = 3, .batch = 2});
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {7, 5}, {1, 11}, {0, 12}, {12, 0}, {0, 0, 12}, {3, 0, 9}, {4, 0, 0, 8}}) {
    expect_as_one_rank(whole, lengths, ring_call(*native, lengths, options()));
  }
  const Inputs two = whole_inputs({.tokens = 2, .heads = 3});
  expect_as_one_rank(two, {1, 1, 0, 0}, ring_call(*native, {1, 1, 0, 0}, options()));
}

TEST_P(Ring, GroupedHeads) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 11, .heads = 6, .kv_heads = 3, .batch = 2});
  expect_as_one_rank(whole, {4, 4, 3}, ring_call(*native, {4, 4, 3}, options()));
}

TEST_P(Ring, ReadsEveryLayout) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 9, .heads = 2, .batch = 2});
  for (at::Tensor* t : {&whole.query, &whole.key, &whole.value}) {
    *t = t->transpose(1, 2).contiguous().transpose(1, 2);
  }
  whole.scale = 0.7;
  expect_as_one_rank(whole, {5, 4}, ring_call(*native, {5, 4}, options()));
}

TEST_P(Ring, BackendsAndDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Inputs whole = whole_inputs({.tokens = 70, .heads = 2, .head_dim = 64, .dtype = dtype});
    const Result want = (*backend("native"))(whole);
    const std::vector<int64_t> lengths = split_lengths(70, 3);
    for (const char* name : {"native", "flash", "ffpa"}) {
      SCOPED_TRACE(c10::str(name, " ", dtype));
      const auto inner = backend(name);
      expect_as_one_rank(whole, lengths, ring_call(*inner, lengths, options()),
                         dtype == at::kFloat ? 1e-5 : 1e-2, dtype == at::kFloat ? 1e-5 : 1e-4);
    }
    const auto sage = backend("sage");
    const at::Tensor got = gathered_out(whole, lengths, ring_call(*sage, lengths, options()));
    EXPECT_GE(test::cosine(got, want.out), 0.999) << dtype;
  }
}

// FR-14: logits times 30, so that parts differ in their log-sum-exps by far.
TEST_P(Ring, SharpLogits) {
  const auto native = backend("native");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Inputs whole = whole_inputs({.tokens = 8, .heads = 2, .head_dim = 16, .dtype = dtype});
    whole.scale = 30 / 4.0;
    for (const int64_t ranks : {2, 4}) {
      for (const bool convert : {true, false}) {
        SCOPED_TRACE(c10::str(dtype, ", convert ", convert));
        const std::vector<int64_t> lengths = split_lengths(8, ranks);
        RingOptions sharp = options();
        sharp.convert_to_fp32 = convert;
        if (dtype == at::kFloat) {
          expect_as_one_rank(whole, lengths, ring_call(*native, lengths, sharp), 1e-5);
        } else {
          expect_as_one_rank(whole, lengths, ring_call(*native, lengths, sharp), 2e-2, kLse16Bit);
        }
      }
    }
  }
}

TEST_P(Ring, NamesTheBackend) {
  const auto inner = backend("flash");
  const Inputs whole = whole_inputs({.tokens = 4, .heads = 2});
  test::run_ranks(2, [&](comm::Communicator& group) {
    const Inputs part = part_of(whole, {2, 2}, group.rank());
    EXPECT_EQ((*make_ring(*inner, group, {2, 2}, options()))(part).backend, "flash");
  });
}

INSTANTIATE_TEST_SUITE_P(Methods, Ring,
                         ::testing::Values(RingRotateMethod::kP2P, RingRotateMethod::kAllGather),
                         [](const auto& method) {
                           return method.param == RingRotateMethod::kP2P ? "p2p" : "allgather";
                         });

// Keys travel while the ones that are there are attended to.
TEST(RingP2P, SendsBeforeItComputes) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 6, .heads = 2});
  test::run_ranks(3, [&](comm::Communicator& world) {
    Events events;
    RecordingCommunicator group(world, events);
    const RecordingAttention inner(*native, events);
    (*make_ring(inner, group, {2, 2, 2}))(part_of(whole, {2, 2, 2}, world.rank()));
    EXPECT_THAT(events,
                ElementsAre("start", "attend", "wait", "start", "attend", "wait", "attend"));
  });
}

TEST(RingP2P, ReceivesWhereNothingIsInUse) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 13, .heads = 2, .batch = 2});
  const std::vector<int64_t> lengths = split_lengths(13, 5);
  expect_as_one_rank(whole, lengths, [&](comm::Communicator& world, const Inputs& part) {
    EagerCommunicator group(world);
    return (*make_ring(*native, group, lengths))(part);
  });
}

// The next operation must not meet the messages of one that was given up.
TEST(RingP2P, ARefusalLeavesNoExchangeOpen) {
  const Inputs whole = whole_inputs({.tokens = 6, .heads = 2});
  test::run_ranks(3, [&](comm::Communicator& world) {
    Events events;
    RecordingCommunicator group(world, events);
    const Refusing none;
    const RecordingAttention inner(none, events);
    const auto ring = make_ring(inner, group, {2, 2, 2});
    test::expect_error<UnsupportedError>(
        [&] {
          (*ring)(part_of(whole, {2, 2, 2}, world.rank()));
        },
        HasSubstr("can do nothing"));
    EXPECT_THAT(events, ElementsAre("start", "attend", "wait"));
  });
}

TEST(RingP2P, InputsStayAsTheyAre) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 8, .heads = 2});
  const at::Tensor key = whole.key.clone(), value = whole.value.clone();
  const std::vector<int64_t> lengths = {2, 2, 2, 2};
  expect_as_one_rank(whole, lengths, ring_call(*native, lengths));
  EXPECT_TRUE(test::same_values(whole.key, key));
  EXPECT_TRUE(test::same_values(whole.value, value));
}

}  // namespace
}  // namespace cachedit::parallel
