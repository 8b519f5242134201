// Groups of a mesh, and what is refused before anything is sent.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "cachedit/error.h"
#include "comm/collective_checks.h"
#include "comm/collectives.h"

namespace cachedit::test {
namespace {

using comm::Communicator;
using comm::Pending;
using comm::Subgroup;

at::Tensor number(int64_t value) {
  return at::full({1}, static_cast<double>(value), at::TensorOptions(at::kLong));
}

/// The ranks of the whole run that are in the group, as its members tell each other.
std::vector<int64_t> members(Communicator& group, int64_t rank_of_run) {
  const std::vector<int64_t> ones(static_cast<size_t>(group.size()), 1);
  const at::Tensor all = comm::all_gather(group, number(rank_of_run), ones, 0);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + all.numel()};
}

/// A mesh with as many columns as `columns`; ranks that do not fill a row stand aside.
struct MeshPlace {
  std::vector<int64_t> row, column;
};

MeshPlace place_in_mesh(int64_t rank, int64_t rows, int64_t columns) {
  MeshPlace place;
  for (int64_t c = 0; c < columns; ++c) place.row.push_back(rank / columns * columns + c);
  for (int64_t r = 0; r < rows; ++r) place.column.push_back(r * columns + rank % columns);
  return place;
}

void rows_and_columns_of_a_mesh(Communicator& world) {
  for (const int64_t columns : {1, 2, 3, 4}) {
    const int64_t rows = world.size() / columns;
    if (rows == 0 || world.rank() >= rows * columns) continue;
    const MeshPlace place = place_in_mesh(world.rank(), rows, columns);
    Subgroup row(world, place.row), column(world, place.column);
    require(members(row, world.rank()) == place.row, "row of ", columns, " columns");
    require(members(column, world.rank()) == place.column, "column of ", columns, " columns");
  }
}

void the_order_of_a_group_is_the_callers(Communicator& world) {
  std::vector<int64_t> backwards(static_cast<size_t>(world.size()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  Subgroup group(world, backwards);
  require(group.rank() == world.size() - 1 - world.rank(), "rank ", group.rank());
  require(group.name_of(0) == c10::str("rank ", world.size() - 1), group.name_of(0));
  require(members(group, world.rank()) == backwards, "members backwards");
}

void groups_of_groups(Communicator& world) {
  std::vector<int64_t> same_parity;
  for (int64_t r = world.rank() % 2; r < world.size(); r += 2) same_parity.push_back(r);
  Subgroup half(world, same_parity);
  // The first and the last of each half.
  std::vector<int64_t> ends = {0};
  if (half.size() > 1) ends.push_back(half.size() - 1);
  if (half.rank() != 0 && half.rank() != half.size() - 1) return;
  Subgroup pair(half, ends);
  std::vector<int64_t> want = {same_parity.front()};
  if (half.size() > 1) want.push_back(same_parity.back());
  require(members(pair, world.rank()) == want, "members of a pair");
  require(pair.name_of(pair.size() - 1) == c10::str("rank ", want.back()), "name within a pair");
}

/// Two ranks that share more than one group: operations of both are under way at once.
void groups_with_the_same_ranks_overlap(Communicator& world) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  Subgroup first(world, all), second(world, {all.rbegin(), all.rend()});
  const at::Tensor a = at::empty({1}, at::kLong), b = at::empty({1}, at::kLong);
  Pending on = comm::rotate(first, number(world.rank()), a);
  Pending back = comm::rotate(second, number(100 + world.rank()), b);
  back.wait();
  on.wait();
  const int64_t n = world.size();
  require_same(a, number((world.rank() + n - 1) % n), "first group");
  require_same(b, number(100 + (world.rank() + 1) % n), "second group");
}

void a_group_counts_its_own_traffic(Communicator& world) {
  std::vector<int64_t> same_parity;
  for (int64_t r = world.rank() % 2; r < world.size(); r += 2) same_parity.push_back(r);
  Subgroup half(world, same_parity);
  world.reset_traffic();
  const at::Tensor got = at::empty({1}, at::kLong);
  comm::rotate(half, number(1), got).wait();
  const int64_t bytes = half.size() > 1 ? 8 : 0;
  require(half.traffic().bytes_sent == bytes, "group: ", half.traffic().bytes_sent);
  require(world.traffic().bytes_sent == bytes, "world: ", world.traffic().bytes_sent);
  world.reset_traffic();
}

void equal_texts_pass(Communicator& world) { comm::require_equal(world, "arguments", "a\nb"); }

/// Expects CommError whose text holds all of `parts`.
template <class Action>
void require_refused(const Action& action, const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const CommError& error) {
    const std::string text = error.what();
    for (const std::string& part : parts) {
      require(text.find(part) != std::string::npos, "no '", part, "' in: ", text);
    }
    return;
  }
  require(false, "not refused: ", parts);
}

void different_texts_are_named_on_every_rank(Communicator& world) {
  if (world.size() == 1) return;
  const bool last = world.rank() == world.size() - 1;
  const std::string who = c10::str("rank ", world.size() - 1);
  require_refused(
      [&] {
        comm::require_equal(world, "arguments", last ? "seed 1\nsteps 5" : "seed 1\nsteps 4");
      },
      {"[comm]", "the same arguments", who + " has 'steps 5' where rank 0 has 'steps 4'"});
  require_refused([&] { comm::require_equal(world, "files", last ? "a" : "a\nb"); },
                  {"the same files", who + " has 'nothing' where rank 0 has 'b'"});
  require_refused([&] { comm::require_equal(world, "files", world.rank() == 0 ? "a" : "a\nb"); },
                  {"rank 1 has 'b' where rank 0 has 'nothing'", who + " has 'b'"});
}

void what_cannot_be_sent_is_refused(Communicator& group) {
  const int64_t n = group.size();
  const at::Tensor tensor = at::zeros({4, 6}, at::kFloat);
  const auto send_to = [&](int64_t rank) { group.exchange({{rank, tensor}}, {}, "greet").wait(); };
  const std::string range = c10::str("0..", n - 1);
  require_refused([&] { send_to(n); }, {"[greet]", range, c10::str("got ", n)});
  require_refused([&] { send_to(-1); }, {"[greet]", range, "got -1"});
  require_refused(
      [&] {
        group.exchange({}, {{0, tensor.t()}}, "greet").wait();
      },
      {"[greet]", "contiguous", "[6, 4]"});
  require_refused([&] { comm::all_to_all(group, {}, {}).wait(); }, {"[all_to_all]", "got 0 and 0"});
  const std::vector<int64_t> sizes(static_cast<size_t>(n), 5);
  require_refused([&] { comm::all_gather(group, tensor, sizes, 0); }, {"[all_gather]", "[4, 6]"});
  require_refused([&] { comm::all_gather(group, tensor, {}, 0); }, {"[all_gather]"});
  if (n > 1) {
    at::Tensor turned = tensor.t();
    require_refused([&] { comm::all_reduce_sum(group, turned); }, {"[all_reduce]", "contiguous"});
  }
  const int64_t own = group.rank();
  require_refused(
      [&] {
        group.exchange({{own, tensor}}, {}, "self").wait();
      },
      {"[self]", "1 and 0"});
  require_refused(
      [&] {
        group.exchange({{own, tensor}}, {{own, at::empty({5})}}, "self").wait();
      },
      {"[self]", "[4, 6]", "[5]"});
  require_refused(
      [&] {
        group.exchange({{own, tensor}}, {{own, at::empty({24}, at::kDouble)}}, "self").wait();
      },
      {"[self]", "Double"});
}

void a_group_must_hold_its_own_rank_once(Communicator& world) {
  const int64_t own = world.rank(), n = world.size();
  require_refused([&] { Subgroup(world, {}); }, {"[comm]", c10::str("(", own, ")")});
  require_refused([&] { Subgroup(world, {own, own}); }, {"[comm]"});
  require_refused([&] { Subgroup(world, {own, n}); }, {"[comm]", c10::str("below ", n)});
  require_refused([&] { Subgroup(world, {-1, own}); }, {"[comm]"});
  if (n > 1) require_refused([&] { Subgroup(world, {(own + 1) % n}); }, {"[comm]"});
}

}  // namespace

std::vector<CollectiveCheck> group_checks() {
  return {{"RowsAndColumnsOfAMesh", rows_and_columns_of_a_mesh},
          {"TheOrderOfAGroupIsTheCallers", the_order_of_a_group_is_the_callers},
          {"GroupsOfGroups", groups_of_groups},
          {"GroupsWithTheSameRanksOverlap", groups_with_the_same_ranks_overlap},
          {"AGroupCountsItsOwnTraffic", a_group_counts_its_own_traffic},
          {"EqualTextsPass", equal_texts_pass},
          {"DifferentTextsAreNamedOnEveryRank", different_texts_are_named_on_every_rank},
          {"WhatCannotBeSentIsRefused", what_cannot_be_sent_is_refused},
          {"AGroupMustHoldItsOwnRankOnce", a_group_must_hold_its_own_rank_once}};
}

}  // namespace cachedit::test
