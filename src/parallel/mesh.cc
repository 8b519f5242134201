#include "parallel/mesh.h"

#include <array>
#include <vector>

#include "base/fail.h"

namespace cachedit::parallel {
namespace {

/// Axes from the slowest to the fastest.
enum Axis { kCfg, kRing, kUlysses, kTp, kAxes };
using Coordinates = std::array<int64_t, kAxes>;

Coordinates sizes_of(const Layout& layout) {
  return {layout.cfg, layout.ring, layout.ulysses, layout.tp};
}

Coordinates coordinates_of(int64_t rank, const Coordinates& sizes) {
  Coordinates at{};
  for (size_t axis = kAxes; axis-- > 0;) {
    at[axis] = rank % sizes[axis];
    rank /= sizes[axis];
  }
  return at;
}

/// The ranks that agree with `world`'s own one in every axis that is not among `axes`.
std::unique_ptr<comm::Communicator> group_along(comm::Communicator& world, const Coordinates& sizes,
                                                const std::vector<Axis>& axes) {
  const Coordinates own = coordinates_of(world.rank(), sizes);
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    Coordinates at = coordinates_of(rank, sizes);
    for (const Axis axis : axes) at[axis] = own[axis];
    if (at == own) ranks.push_back(rank);
  }
  return std::make_unique<comm::Subgroup>(world, std::move(ranks));
}

}  // namespace

Mesh::Mesh(comm::Communicator& world, const Layout& layout) : world_(world), layout_(layout) {
  if (world.size() != layout.world()) {
    fail<CommError>("parallel", "the layout ", to_string(layout), " needs ", layout.world(),
                    " ranks: got ", world.size());
  }
  const Coordinates sizes = sizes_of(layout);
  cfg_ = group_along(world, sizes, {kCfg});
  ring_ = group_along(world, sizes, {kRing});
  ulysses_ = group_along(world, sizes, {kUlysses});
  tp_ = group_along(world, sizes, {kTp});
  sequence_ = group_along(world, sizes, {kRing, kUlysses});
  branch_ = group_along(world, sizes, {kRing, kUlysses, kTp});
}

}  // namespace cachedit::parallel
