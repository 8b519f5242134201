// The shared checks on ranks that are threads, and what only threads can show.
#include "comm/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <tuple>

#include "cachedit/error.h"
#include "comm/collective_checks.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"

namespace cachedit::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Collectives : public ::testing::TestWithParam<std::tuple<size_t, int64_t>> {};

TEST_P(Collectives, Hold) {
  const auto& [check, ranks] = GetParam();
  EXPECT_NO_THROW(test::run_ranks(ranks, test::collective_checks()[check].run));
}

INSTANTIATE_TEST_SUITE_P(
    Threads, Collectives,
    ::testing::Combine(::testing::Range<size_t>(0, test::collective_checks().size()),
                       ::testing::Values<int64_t>(1, 2, 3, 4, 6, 8)),
    [](const auto& test_case) {
      return test::collective_checks()[std::get<0>(test_case.param)].name +
             std::to_string(std::get<1>(test_case.param));
    });

TEST(Collectives, OneProcessAloneNeedsNoTransport) {
  for (const test::CollectiveCheck& check : test::collective_checks()) {
    SingleProcess alone;
    EXPECT_NO_THROW(check.run(alone)) << check.name;
  }
  EXPECT_EQ(SingleProcess().collect_failures(0), std::vector<std::string>{""});
}

TEST(Collectives, NobodyPassesABarrierBeforeAllHaveCome) {
  for (const int64_t ranks : {2, 3, 8}) {
    std::atomic<int64_t> arrived = 0;
    test::run_ranks(ranks, [&](Communicator& group) {
      ++arrived;
      barrier(group);
      EXPECT_EQ(arrived, ranks);
    });
  }
}

TEST(Collectives, ARankThatThrowsEndsTheWaitsOfTheOthers) {
  std::atomic<int> ended = 0;
  test::expect_error<InputError>(
      [&] {
        test::run_ranks(4, [&](Communicator& group) {
          if (group.rank() == 2) throw InputError("[test] no width");
          test::expect_error<CommError>([&] { barrier(group); },
                                        HasSubstr("rank 2 failed: [test] no width"));
          ++ended;
        });
      },
      HasSubstr("no width"));
  EXPECT_EQ(ended, 3);
}

TEST(Collectives, RanksThatDisagreeOnSizesAreTold) {
  test::expect_error<CommError>(
      [] {
        test::run_ranks(2, [](Communicator& group) {
          const at::Tensor got = at::empty({3}, at::kFloat);
          rotate(group, at::zeros({group.rank() == 0 ? 2 : 3}, at::kFloat), got).wait();
        });
      },
      AllOf(HasSubstr("[rotate]"), HasSubstr("rank 0 sent"), HasSubstr("[2]")));
}

TEST(Pending, OneThatIsDoneNeedsNoWait) {
  Pending done;
  EXPECT_NO_THROW(done.wait());
  int calls = 0;
  Pending once([&] { ++calls; });
  Pending moved = std::move(once);
  moved.wait();
  moved.wait();
  EXPECT_EQ(calls, 1);
}

TEST(Pending, OneThatFailedFailsOnce) {
  Pending failing([] { throw CommError("[test] lost"); });
  EXPECT_THROW(failing.wait(), CommError);
  EXPECT_NO_THROW(failing.wait());
}

}  // namespace
}  // namespace cachedit::comm
