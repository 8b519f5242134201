#include "parallel/sequence.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cachedit/error.h"
#include "support/attention_reference.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"

namespace cachedit::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SplitLengths, DifferByAtMostOneWithTheLongerFirst) {
  EXPECT_THAT(split_lengths(9, 2), ElementsAre(5, 4));
  EXPECT_THAT(split_lengths(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(split_lengths(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(split_lengths(2, 3), ElementsAre(1, 1, 0));
  EXPECT_THAT(split_lengths(0, 2), ElementsAre(0, 0));
  EXPECT_THAT(split_lengths(7, 1), ElementsAre(7));
}

// S-11: nothing is padded, so nothing comes back that has to be taken off.
TEST(SequenceSplit, GathersAsManyTokensAsThereWere) {
  const int64_t tokens = 57826;
  const std::vector<int64_t> lengths = split_lengths(tokens, 8);
  EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), tokens);
  const at::Tensor whole = at::arange(tokens).view({1, tokens, 1});
  test::run_ranks(8, [&](comm::Communicator& group) {
    const SequenceSplit split(group, tokens);
    EXPECT_EQ(split.lengths(), lengths);
    EXPECT_EQ(split.total(), tokens);
    EXPECT_EQ(split.local(), lengths[static_cast<size_t>(group.rank())]);
    EXPECT_TRUE(at::equal(split.gather(split.take(whole, 1), 1), whole));
  });
}

TEST(SequenceSplit, TakesAndGathersAlongEveryDimension) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t tokens : {2, 5, 12}) {
      for (const int64_t dim : {0, 1, 2}) {
        std::vector<int64_t> shape = {2, 3, 4};
        shape[static_cast<size_t>(dim)] = tokens;
        const at::Tensor whole = test::seeded_normal(shape, at::kFloat, 1);
        test::run_ranks(ranks, [&](comm::Communicator& group) {
          const SequenceSplit split(group, tokens);
          const at::Tensor part = split.take(whole, dim);
          EXPECT_EQ(part.size(dim), split.local());
          EXPECT_TRUE(part.is_alias_of(whole)) << "a view";
          EXPECT_TRUE(at::equal(split.gather(part, dim), whole));
          EXPECT_TRUE(at::equal(split.gather(part, dim - 3), whole));
        });
      }
    }
  }
}

TEST(SequenceSplit, OtherLengthsAreRefused) {
  test::run_ranks(2, [](comm::Communicator& group) {
    const SequenceSplit split(group, 5);
    test::expect_error<InputError>([&] { split.take(at::arange(6), 0); },
                                   AllOf(HasSubstr("5 tokens"), HasSubstr("[6]")));
    test::expect_error<CommError>([&] { split.gather(at::arange(5), 0); }, HasSubstr("[5]"));
  });
}

TEST(JointLengths, AddUpPerRank) {
  test::run_ranks(2, [](comm::Communicator& group) {
    const SequenceSplit text(group, 5), image(group, 6);
    EXPECT_THAT(joint_lengths({&text, &image}), ElementsAre(6, 5));
    EXPECT_THAT(joint_lengths({&image}), ElementsAre(3, 3));
  });
}

}  // namespace
}  // namespace cachedit::parallel
