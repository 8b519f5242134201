#include "parallel/mesh.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "comm/collectives.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"

namespace cachedit::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// The ranks of the world that a group consists of, as it numbers them.
std::vector<int64_t> members(comm::Communicator& group, int64_t own) {
  const std::vector<int64_t> ones(static_cast<size_t>(group.size()), 1);
  const at::Tensor ranks = comm::all_gather(group, at::full({1}, own, at::kLong), ones, 0);
  return {ranks.const_data_ptr<int64_t>(), ranks.const_data_ptr<int64_t>() + ranks.numel()};
}

TEST(Layout, IsCountedAndNamed) {
  const Layout layout{.cfg = 2, .ring = 3, .ulysses = 4, .tp = 5};
  EXPECT_EQ(layout.world(), 120);
  EXPECT_EQ(layout.sequence(), 12);
  EXPECT_EQ(to_string(layout), "cfg 2 x ring 3 x ulysses 4 x tp 5");
  EXPECT_EQ(to_string({.ulysses = 2, .tp = 2}), "ulysses 2 x tp 2");
  EXPECT_EQ(to_string({}), "single");
}

// Rank ((cfg * R + ring) * U + ulysses) * T + tp.
TEST(Mesh, GroupsDifferInOneCoordinateEach) {
  const Layout layout{.cfg = 2, .ring = 2, .ulysses = 3, .tp = 2};
  test::run_ranks(layout.world(), [&](comm::Communicator& world) {
    const Mesh mesh(world, layout);
    const int64_t own = world.rank();
    const int64_t tp = own % 2, ulysses = own / 2 % 3, ring = own / 6 % 2, cfg = own / 12;
    EXPECT_EQ(mesh.tp().rank(), tp);
    EXPECT_EQ(mesh.ulysses().rank(), ulysses);
    EXPECT_EQ(mesh.ring().rank(), ring);
    EXPECT_EQ(mesh.cfg().rank(), cfg);
    EXPECT_EQ(mesh.sequence().rank(), ring * 3 + ulysses) << "ring x ulysses in token order";
    EXPECT_EQ(members(mesh.tp(), own), (std::vector<int64_t>{own - tp, own - tp + 1}));
    const int64_t first = own - 2 * ulysses;
    EXPECT_EQ(members(mesh.ulysses(), own), (std::vector<int64_t>{first, first + 2, first + 4}));
    EXPECT_EQ(members(mesh.ring(), own),
              (std::vector<int64_t>{own - 6 * ring, own - 6 * ring + 6}));
    EXPECT_EQ(members(mesh.cfg(), own),
              (std::vector<int64_t>{own - 12 * cfg, own - 12 * cfg + 12}));
    std::vector<int64_t> sequence, branch;
    for (int64_t i = 0; i < 6; ++i) sequence.push_back(12 * cfg + tp + 2 * i);
    for (int64_t i = 0; i < 12; ++i) branch.push_back(12 * cfg + i);
    EXPECT_EQ(members(mesh.sequence(), own), sequence);
    EXPECT_EQ(members(mesh.branch(), own), branch);
    EXPECT_EQ(mesh.ulysses().name_of(0), world.name_of(first)) << "errors name the run's ranks";
  });
}

TEST(Mesh, OneRankHasGroupsOfOne) {
  comm::SingleProcess single;
  const Mesh mesh(single, {});
  for (const auto* group :
       {&mesh.cfg(), &mesh.ring(), &mesh.ulysses(), &mesh.tp(), &mesh.sequence(), &mesh.branch()}) {
    EXPECT_EQ(group->size(), 1);
    EXPECT_EQ(group->rank(), 0);
  }
}

TEST(Mesh, AnotherNumberOfRanksIsRefused) {
  test::run_ranks(3, [](comm::Communicator& world) {
    test::expect_error<CommError>(
        [&] { Mesh(world, {.ulysses = 2, .tp = 2}); },
        AllOf(HasSubstr("ulysses 2 x tp 2"), HasSubstr("needs 4 ranks"), HasSubstr("got 3")));
  });
}

}  // namespace
}  // namespace cachedit::parallel
