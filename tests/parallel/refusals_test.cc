// What Ulysses and Ring refuse, and how they say it: FR-12, FR-18, S-11.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/availability.h"
#include "attention/select.h"
#include "cachedit/error.h"
#include "parallel/context_parallel.h"
#include "parallel/sequence.h"
#include "parts.h"
#include "support/attention_reference.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr UlyssesOptions kAnything{.anything = true};

TEST(UlyssesRules, HeadsThatDoNotDivide) {
  EXPECT_NO_THROW(check_ulysses_heads(30, 5, {}));
  EXPECT_NO_THROW(check_ulysses_heads(3, 1, {}));
  EXPECT_NO_THROW(check_ulysses_heads(30, 4, kAnything));
  EXPECT_NO_THROW(check_ulysses_heads(24, 8, {.float8 = true}));
  test::expect_error<UnsupportedError>(
      [] { check_ulysses_heads(30, 4, {}); },
      AllOf(HasSubstr("[ulysses] heads must divide by the ranks: got 30 heads and 4 ranks"),
            HasSubstr("--ulysses-anything"), HasSubstr("2, 3, 5, 6, 10, 15, 30")));
  test::expect_error<UnsupportedError>(
      [] { check_ulysses_heads(3, 2, {}); },
      AllOf(HasSubstr("got 3 heads and 2 ranks"), HasSubstr("divide 3: 3")));
}

TEST(UlyssesRules, FewerHeadsThanRanks) {
  for (const bool anything : {false, true}) {
    test::expect_error<UnsupportedError>(
        [&] { check_ulysses_heads(3, 4, {.anything = anything}); },
        AllOf(HasSubstr("got 3 heads and 4 ranks"), HasSubstr("divide 3: 3"),
              HasSubstr("--ulysses-anything all up to 3")));
  }
}

TEST(UlyssesRules, Float8NeedsHeadsThatDivide) {
  for (const bool anything : {false, true}) {
    test::expect_error<UnsupportedError>(
        [&] { check_ulysses_heads(5, 2, {.anything = anything, .float8 = true}); },
        AllOf(HasSubstr("float8"), HasSubstr("got 5 heads and 2 ranks"),
              HasSubstr("--ulysses-float8"), HasSubstr("divide 5: 5")));
  }
}

TEST(UlyssesRules, TokensThatDoNotDivide) {
  EXPECT_NO_THROW(check_ulysses_tokens(split_lengths(6888, 2), {}));
  EXPECT_NO_THROW(check_ulysses_tokens(split_lengths(6889, 2), kAnything));
  test::expect_error<UnsupportedError>(
      [] { check_ulysses_tokens(split_lengths(6889, 2), {}); },
      AllOf(HasSubstr("got 6889 tokens and 2 ranks"), HasSubstr("--ulysses-anything")));
  test::expect_error<UnsupportedError>([] { check_ulysses_tokens(split_lengths(57826, 8), {}); },
                                       HasSubstr("got 57826 tokens and 8 ranks"));
}

/// Runs `action(group, native)` on two ranks and expects its error on both; afterwards the ranks
/// can still attend together.
template <class ErrorType, class Action>
void expect_refused(const Action& action, const ::testing::Matcher<std::string>& text) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 6, .heads = 2});
  test::run_ranks(2, [&](comm::Communicator& group) {
    test::expect_error<ErrorType>([&] { action(group); }, text);
    const Inputs part = part_of(whole, {3, 3}, group.rank());
    EXPECT_NO_THROW((*make_ulysses(*native, group, {3, 3}))(part));
    EXPECT_NO_THROW((*make_ring(*native, group, {3, 3}))(part));
  });
}

TEST(UlyssesRefuses, WhatDoesNotDivide) {
  const auto native = backend("native");
  expect_refused<UnsupportedError>(
      [&](comm::Communicator& group) {
        make_ulysses(*native, group, {3445, 3444});
      },
      AllOf(HasSubstr("6889 tokens and 2 ranks"), HasSubstr("--ulysses-anything")));
  const Inputs three = whole_inputs({.tokens = 6, .heads = 3});
  for (const bool async : {false, true}) {
    expect_refused<UnsupportedError>(
        [&](comm::Communicator& group) {
          const Inputs part = part_of(three, {3, 3}, group.rank());
          make_ulysses(*native, group, {3, 3}, {.async = async})
              ->project_and_attend({.query = [&] { return part.query; },
                                    .key = [&] { return part.key; },
                                    .value = [&] { return part.value; }},
                                   {});
        },
        HasSubstr("3 heads and 2 ranks"));
  }
}

TEST(UlyssesRefuses, KeyHeadsThatDoNotDivide) {
  const auto native = backend("native");
  const Inputs grouped = whole_inputs({.tokens = 6, .heads = 6, .kv_heads = 3});
  for (const bool anything : {false, true}) {
    expect_refused<UnsupportedError>(
        [&](comm::Communicator& group) {
          const Inputs part = part_of(grouped, {3, 3}, group.rank());
          (*make_ulysses(*native, group, {3, 3}, {.anything = anything}))(part);
        },
        AllOf(HasSubstr("enable_gqa"), HasSubstr("got 3 key heads and 2 ranks"),
              HasSubstr("divide 3: 3")));
  }
}

/// Both wrappers refuse it, before they send anything.
template <class ErrorType>
void both_refuse(const std::function<void(Inputs&)>& spoil,
                 const ::testing::Matcher<std::string>& text) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 6, .heads = 2, .batch = 2});
  for (const bool ulysses : {true, false}) {
    expect_refused<ErrorType>(
        [&](comm::Communicator& group) {
          Inputs part = part_of(whole, {3, 3}, group.rank());
          spoil(part);
          if (ulysses) {
            (*make_ulysses(*native, group, {3, 3}))(part);
          } else {
            (*make_ring(*native, group, {3, 3}))(part);
          }
        },
        AllOf(HasSubstr(ulysses ? "ulysses" : "ring"), text));
  }
}

TEST(ContextParallelRefuses, Causal) {
  both_refuse<UnsupportedError>([](Inputs& in) { in.is_causal = true; }, HasSubstr("is_causal"));
  const auto native = backend("native");
  expect_refused<UnsupportedError>(
      [&](comm::Communicator& group) {
        make_ulysses(*native, group, {3, 3}, {.async = true})
            ->project_and_attend({}, {.is_causal = true});
      },
      HasSubstr("is_causal"));
}

TEST(ContextParallelRefuses, TokensThatAreNotThisRanks) {
  both_refuse<InputError>([](Inputs& in) { in.query = in.query.narrow(1, 0, 2); },
                          AllOf(HasSubstr("has 3 tokens"), HasSubstr("[2, 2, 2, 16]")));
  both_refuse<InputError>(
      [](Inputs& in) {
        in.key = in.key.narrow(1, 0, 2);
        in.value = in.value.narrow(1, 0, 2);
      },
      HasSubstr("has 3 tokens"));
  both_refuse<InputError>([](Inputs& in) { in.value = in.value.narrow(1, 0, 2); },
                          HasSubstr("same tokens and heads"));
  both_refuse<InputError>([](Inputs& in) { in.key = at::Tensor(); }, HasSubstr("key is missing"));
}

TEST(ContextParallelRefuses, MasksOfOtherShapes) {
  const std::vector<std::vector<int64_t>> shapes = {
      {6}, {2, 6}, {3, 3}, {1, 1, 1, 6}, {2, 2, 1, 3}, {2, 1, 2, 6}, {2, 3, 3, 6}, {1, 1, 1, 3, 6}};
  for (const std::vector<int64_t>& shape : shapes) {
    both_refuse<InputError>(
        [&](Inputs& in) { in.mask = test::seeded_bool(shape, 0.5, 1); },
        AllOf(HasSubstr("] a mask must"), HasSubstr(c10::str(at::IntArrayRef(shape)))));
  }
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 6, .heads = 2, .batch = 2});
  expect_refused<InputError>(
      [&](comm::Communicator& group) {
        Inputs part = part_of(whole, {3, 3}, group.rank());
        part.mask = at::ones({1, 1, 3, 7}, at::kBool);
        (*make_ring(*native, group, {3, 3}))(part);
      },
      AllOf(HasSubstr("6, as columns"), HasSubstr("[1, 1, 3, 7]")));
}

TEST(ContextParallelRefuses, LengthsThatAreNotTheRanks) {
  const auto native = backend("native");
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{3}, {1, 1, 1}, {3, -3}}) {
    expect_refused<InputError>(
        [&](comm::Communicator& group) { make_ring(*native, group, lengths); },
        AllOf(HasSubstr("each of 2 ranks"), HasSubstr(c10::str(lengths))));
    expect_refused<InputError>(
        [&](comm::Communicator& group) { make_ulysses(*native, group, lengths, kAnything); },
        HasSubstr("each of 2 ranks"));
  }
}

// Masks by the table: the backend inside decides.
TEST(ContextParallelRefuses, MasksThatTheBackendTakesOnOneDeviceOnly) {
  for (const char* name : {"ffpa", "ffpa_fp8", "flash", "sage"}) {
    const auto inner = backend(name);
    Inputs whole = whole_inputs({.tokens = 6, .heads = 2});
    whole.mask = at::ones({1, 6}, at::kBool);
    whole.mask.select(1, 1).fill_(false);
    whole.mask.select(1, 4).fill_(false);
    for (const bool ulysses : {true, false}) {
      expect_refused<UnsupportedError>(
          [&](comm::Communicator& group) {
            const Inputs part = part_of(whole, {3, 3}, group.rank());
            const auto wrapped =
                ulysses ? make_ulysses(*inner, group, {3, 3}) : make_ring(*inner, group, {3, 3});
            (*wrapped)(part);
          },
          AllOf(HasSubstr(c10::str("[attention ", name, "]")), HasSubstr("mask"),
                HasSubstr("these can: native"), Not(HasSubstr("native, "))));
    }
  }
}

TEST(RingRefuses, BackendsWithoutLogSumExpButNotToGather) {
  attention::Backend plain{.name = "plain", .description = "native without lse"};
  attention::DeviceSupport support = *attention::builtin_registry().find("native").on(at::kCPU);
  support.can.lse = false;
  plain.devices = {support};
  const attention::Registry registry({plain, attention::builtin_registry().find("flash")});
  const auto inner = attention::make_attention("plain", at::kCPU, {.registry = &registry});
  Inputs whole = whole_inputs({.tokens = 6, .heads = 2});
  whole.return_lse = false;
  expect_refused<UnsupportedError>(
      [&](comm::Communicator& group) {
        (*make_ring(*inner, group, {3, 3}))(part_of(whole, {3, 3}, group.rank()));
      },
      AllOf(HasSubstr("[attention plain] it gives no log-sum-exp"), HasSubstr("these can: flash")));
  expect_as_one_rank(whole, {3, 3},
                     ring_call(*inner, {3, 3}, {.rotate_method = RingRotateMethod::kAllGather}));
}

}  // namespace
}  // namespace cachedit::parallel
