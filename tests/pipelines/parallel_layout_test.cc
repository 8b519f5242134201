#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "cachedit/parallel.h"
#include "support/expect_error.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Sizes {
  std::optional<int64_t> ulysses, ring, tp;
};

void expect_sizes(const char* type, int64_t ranks, const Sizes& want,
                  const ParallelismConfig& given = {}) {
  SCOPED_TRACE(std::string(type) + " on " + std::to_string(ranks));
  const ParallelismConfig got = parallel_layout(type, ranks, given);
  EXPECT_EQ(got.ulysses_size, want.ulysses);
  EXPECT_EQ(got.ring_size, want.ring);
  EXPECT_EQ(got.tp_size, want.tp);
}

// The sizes that cache-dit's command line derives.
TEST(ParallelLayout, TypesShareOutRanksAsUpstreamDoes) {
  expect_sizes("ulysses", 4, {.ulysses = 4});
  expect_sizes("ring", 3, {.ring = 3});
  expect_sizes("tp", 8, {.tp = 8});
  expect_sizes("usp", 4, {.ulysses = 2, .ring = 2});
  expect_sizes("usp", 8, {.ulysses = 4, .ring = 2});
  expect_sizes("usp", 2, {.ulysses = 1, .ring = 2});
  expect_sizes("ulysses_tp", 8, {.ulysses = 4, .tp = 2});
  expect_sizes("tp_ulysses", 8, {.ulysses = 2, .tp = 4});
  expect_sizes("ring_tp", 8, {.ring = 4, .tp = 2});
  expect_sizes("tp_ring", 8, {.ring = 2, .tp = 4});
  expect_sizes("usp_tp", 8, {.ulysses = 2, .ring = 2, .tp = 2});
}

TEST(ParallelLayout, GivenSizesStayAndTheOthersFollow) {
  expect_sizes("usp", 6, {.ulysses = 2, .ring = 3}, {.ulysses_size = 2});
  expect_sizes("usp", 6, {.ulysses = 3, .ring = 2}, {.ring_size = 2});
  expect_sizes("usp_tp", 12, {.ulysses = 2, .ring = 2, .tp = 3}, {.tp_size = 3});
  expect_sizes("ulysses", 4, {.ulysses = 2}, {.cfg_size = 2});
}

TEST(ParallelLayout, RefusesWhatCannotBeSharedOut) {
  const auto refuse = [](const char* type, int64_t ranks, const ParallelismConfig& given,
                         const ::testing::Matcher<std::string>& text) {
    test::expect_error<InputError>([&] { parallel_layout(type, ranks, given); }, text);
  };
  refuse("bogus", 2, {}, AllOf(HasSubstr("got 'bogus'"), HasSubstr("usp_tp")));
  refuse("ulysses", 1, {}, AllOf(HasSubstr("got one"), HasSubstr("mpirun -n 2")));
  refuse("usp", 7, {}, HasSubstr("7 of them do not divide by 3"));
  refuse("usp", 6, {.ulysses_size = 4}, HasSubstr("do not divide by 4"));
  refuse("tp", 4, {.tp_size = 2}, HasSubstr("2 would have nothing to do"));
  refuse("ulysses", 3, {.cfg_size = 2}, HasSubstr("do not divide by 2"));
  refuse("tp", 2, {.tp_size = 0}, HasSubstr("do not divide by 0"));
}

TEST(ParallelLayout, ABackendAloneIsNoLayout) {
  EXPECT_FALSE(ParallelismConfig().enabled());
  EXPECT_FALSE(ParallelismConfig{.attention_backend = "flash"}.enabled());
  EXPECT_TRUE(ParallelismConfig{.tp_size = 2}.enabled());
  EXPECT_TRUE(ParallelismConfig{.extra_parallel_modules = {"vae"}}.enabled());
}

}  // namespace
}  // namespace cachedit
