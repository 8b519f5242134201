#include "comm/mpi_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fail.h"
#include "comm/mpi.h"
#include "support/expect_error.h"

namespace cachedit::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LaunchedRanks, AreWhatTheFirstLauncherSays) {
  EXPECT_EQ(launched_ranks(Environment{}), 1);
  EXPECT_EQ(launched_ranks(Environment{.ompi_comm_world_size = "4"}), 4);
  EXPECT_EQ(launched_ranks(Environment{.pmi_size = "8"}), 8);
  EXPECT_EQ(launched_ranks(Environment{.slurm_step_num_tasks = "16"}), 16);
  // mpirun within a Slurm job: Slurm started one process per machine, mpirun four.
  EXPECT_EQ(launched_ranks(Environment{.ompi_comm_world_size = "4", .slurm_step_num_tasks = "1"}),
            4);
}

TEST(LaunchedRanks, AreRefusedUnlessTheyAreANumber) {
  for (const char* text : {"0", "-2", "two", "2x", " 2", "99999999999999999999"}) {
    test::expect_error<ConfigError>(
        [&] { launched_ranks(Environment{.pmi_size = text}); },
        AllOf(HasSubstr("[PMI_SIZE]"), HasSubstr(c10::str("'", text, "'"))));
  }
}

TEST(CommTimeout, IsGivenInSeconds) {
  EXPECT_EQ(comm_timeout(Environment{}), 600);
  EXPECT_EQ(comm_timeout(Environment{.comm_timeout = "2"}), 2);
  EXPECT_EQ(comm_timeout(Environment{.comm_timeout = "0.25"}), 0.25);
  EXPECT_EQ(comm_timeout(Environment{.comm_timeout = "1e3"}), 1000);
}

TEST(CommTimeout, IsRefusedUnlessItIsANumberAboveZero) {
  for (const char* text : {"0", "-1", "nan", "inf", "1e300", "soon", "5s", " 5"}) {
    test::expect_error<ConfigError>(
        [&] { comm_timeout(Environment{.comm_timeout = text}); },
        AllOf(HasSubstr("[CACHEDIT_COMM_TIMEOUT]"), HasSubstr(c10::str("'", text, "'"))));
  }
}

TEST(MpiWorld, IsRefusedWhereTheBuildHasNoMpi) {
  if (built_with_mpi()) GTEST_SKIP() << "this build has MPI; tests/python/test_mpi.py runs it";
  test::expect_error<UnsupportedError>([] { mpi_world(); }, HasSubstr("CACHEDIT_MPI"));
}

}  // namespace
}  // namespace cachedit::comm
