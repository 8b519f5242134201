// Who the other ranks are as processes, so that a rank whose peer was killed or has crashed finds
// out: MPI itself would wait for ever.
#pragma once

#include <cstdint>

namespace cachedit::comm {

/// A process and the machine whose process table lists it. Plain bytes, to be sent as they are.
struct ProcessIdentity {
  int64_t pid = 0;
  /// When it started, in the kernel's ticks: tells it from a later process of the same number.
  int64_t start_time = 0;
  /// Boot of the machine, its name and the process namespace; empty where they are not known.
  char machine[256] = {};
};

/// This process.
ProcessIdentity own_identity();

/// Whether both are in one process table, so that one can see whether the other lives.
bool same_machine(const ProcessIdentity& a, const ProcessIdentity& b);

/// Whether a process of this machine has ended, be it as a zombie that nobody has waited for.
bool is_gone(const ProcessIdentity& process);

}  // namespace cachedit::comm
