// The groups that a rank belongs to in a layout.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "parallel/layout.h"

namespace cachedit::parallel {

class Mesh {
 public:
  /// `world` must outlive the mesh. Throws CommError unless it has layout.world() ranks.
  Mesh(comm::Communicator& world, const Layout& layout);

  const Layout& layout() const { return layout_; }
  comm::Communicator& world() const { return world_; }
  /// The ranks that differ from this one in that coordinate alone.
  comm::Communicator& cfg() const { return *cfg_; }
  comm::Communicator& ring() const { return *ring_; }
  comm::Communicator& ulysses() const { return *ulysses_; }
  comm::Communicator& tp() const { return *tp_; }
  /// The ranks that hold the parts of one sequence, in the sequence's order: ring x ulysses.
  comm::Communicator& sequence() const { return *sequence_; }
  /// The ranks that compute one guidance branch together: ring x ulysses x tp.
  comm::Communicator& branch() const { return *branch_; }

 private:
  comm::Communicator& world_;
  Layout layout_;
  std::unique_ptr<comm::Communicator> cfg_, ring_, ulysses_, tp_, sequence_, branch_;
};

}  // namespace cachedit::parallel
