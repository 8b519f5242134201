// Asynchronous Ulysses: the same numbers, sent while the next projection is computed.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/sequence.h"
#include "parts.h"
#include "support/attention_reference.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using attention::Projections;
using attention::Result;
using ::testing::ElementsAre;

/// Projections that note their calls.
Projections projections_of(const Inputs& part, Events& events) {
  const auto note = [&events](const char* name, const at::Tensor& t) {
    return [&events, name, t] {
      events.push_back(name);
      return t;
    };
  };
  return {.query = note("query", part.query),
          .key = note("key", part.key),
          .value = note("value", part.value),
          .meanwhile = [&events] { events.push_back("meanwhile"); }};
}

/// What stays when query, key and value come as projections.
Inputs rest_of(Inputs part) {
  part.query = part.key = part.value = at::Tensor();
  return part;
}

TEST(AsyncUlysses, EqualsTheSynchronousOneBitByBit) {
  const auto native = backend("native");
  for (const bool float8 : {false, true}) {
    for (const bool masked : {false, true}) {
      for (const int64_t ranks : {1, 2, 3}) {
        SCOPED_TRACE(c10::str("float8 ", float8, ", masked ", masked, ", ranks ", ranks));
        Inputs whole = whole_inputs({.tokens = 13, .heads = 6, .batch = 2});
        if (masked) whole.mask = test::seeded_bool({2, 1, 13, 13}, 0.6, 1);
        const std::vector<int64_t> lengths = split_lengths(13, ranks);
        test::run_ranks(ranks, [&](comm::Communicator& group) {
          const Inputs part = part_of(whole, lengths, group.rank());
          const UlyssesOptions sync{.anything = true, .float8 = float8};
          UlyssesOptions async = sync;
          async.async = true;
          const Result want = (*make_ulysses(*native, group, lengths, sync))(part);
          for (const UlyssesOptions& options : {sync, async}) {
            Events events;
            const Result got =
                make_ulysses(*native, group, lengths, options)
                    ->project_and_attend(projections_of(part, events), rest_of(part));
            EXPECT_TRUE(at::equal(got.out, want.out));
            EXPECT_TRUE(at::equal(got.lse, want.lse));
            EXPECT_EQ(got.backend, "native");
            EXPECT_EQ(events.size(), 4u);
          }
        });
      }
    }
  }
}

/// What happens on a rank of two.
Events events_of(const UlyssesOptions& options) {
  const auto native = backend("native");
  Inputs whole = whole_inputs({.tokens = 8, .heads = 4});
  whole.return_lse = false;
  Events seen;
  test::run_ranks(2, [&](comm::Communicator& world) {
    Events events;
    RecordingCommunicator group(world, events);
    const RecordingAttention inner(*native, events);
    const Inputs part = part_of(whole, {4, 4}, world.rank());
    make_ulysses(inner, group, {4, 4}, options)
        ->project_and_attend(projections_of(part, events), rest_of(part));
    if (world.rank() == 1) seen = events;
  });
  return seen;
}

TEST(AsyncUlysses, SendsBeforeTheNextProjection) {
  EXPECT_THAT(events_of({.async = true}),
              ElementsAre("value", "start", "query", "start", "key", "start", "wait", "wait",
                          "wait", "attend", "start", "meanwhile", "wait"));
}

TEST(AsyncUlysses, WithoutItAllIsProjectedFirst) {
  EXPECT_THAT(events_of({}), ElementsAre("query", "key", "value", "start", "start", "start", "wait",
                                         "wait", "wait", "attend", "start", "wait", "meanwhile"));
}

TEST(AsyncUlysses, WithGroupedHeadsAllIsProjectedFirst) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 8, .heads = 4, .kv_heads = 2});
  const at::Tensor want = (*native)(whole).out;
  test::run_ranks(2, [&](comm::Communicator& group) {
    const Inputs part = part_of(whole, {4, 4}, group.rank());
    Events events;
    const Result got = make_ulysses(*native, group, {4, 4}, {.async = true})
                           ->project_and_attend(projections_of(part, events), rest_of(part));
    EXPECT_LE(test::max_abs_error(got.out, part_of(want, {4, 4}, group.rank(), 1)), 1e-5);
    EXPECT_THAT(events, ElementsAre("query", "key", "value", "meanwhile"));
  });
}

TEST(AsyncUlysses, AroundRing) {
  const auto native = backend("native");
  const Inputs whole = whole_inputs({.tokens = 11, .heads = 5});
  const std::vector<int64_t> lengths = split_lengths(11, 3);
  const at::Tensor want = (*native)(whole).out;
  test::run_ranks(3, [&](comm::Communicator& group) {
    comm::SingleProcess alone;
    const Inputs part = part_of(whole, lengths, group.rank());
    const auto ring = make_ring(*native, group, lengths);
    const auto usp = make_ulysses(*ring, alone, {part.query.size(1)}, {.async = true});
    Events events;
    const Result got = usp->project_and_attend(projections_of(part, events), rest_of(part));
    EXPECT_LE(test::max_abs_error(got.out, part_of(want, lengths, group.rank(), 1)), 1e-5);
    EXPECT_EQ(events.size(), 4u);
  });
}

}  // namespace
}  // namespace cachedit::parallel
