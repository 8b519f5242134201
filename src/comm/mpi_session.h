// This process's part in MPI: initialized once, the word that ranks send each other when they fail
// or end, and an end of the process that never hangs.
#pragma once

#include <mpi.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi_peers.h"

namespace cachedit::comm {

/// Throws CommError with MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view what);

/// MPI can be initialized once in a process, hence one object for all communicators. It is never
/// destroyed: MPI may write into what it holds until the process ends. Calls must not overlap.
class MpiSession {
 public:
  /// The first call initializes MPI. It is finalized when the process exits, provided that every
  /// rank gets there and none has failed: MPI_Finalize waits for all ranks. Where another rank
  /// failed after this one had finished, the exit code becomes 1.
  static MpiSession& instance();

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm tensors() const { return tensors_; }
  double timeout_seconds() const { return timeout_seconds_; }

  /// Takes in what other ranks have said since the last call.
  void listen();
  /// Throws CommError if another rank has said that it failed.
  void check_said(std::string_view what) const;
  /// Throws CommError if a rank of this machine is gone.
  void check_alive(std::string_view what);
  /// Whether the rank came to the end of its program.
  bool has_left(int rank) const { return others_[static_cast<size_t>(rank)].left; }

  /// After this nothing is sent any more, and MPI is not finalized.
  void mark_failed() { failed_ = true; }
  bool failed() const { return failed_; }
  void announce_failure(const std::string& text);
  /// What the others announced so far, by rank.
  std::vector<std::string> announced() const;
  /// Whether every other rank has announced a failure or is gone or has left.
  bool heard_all() const;

  /// Keeps what an operation that nobody waited for may still read and write.
  void keep(std::shared_ptr<void> abandoned) { graveyard_.push_back(std::move(abandoned)); }

 private:
  struct Other {
    ProcessIdentity process;
    bool near = false;  // on this machine, and not this process
    bool left = false;
    bool first_hand = false;  // its failure is not the consequence of another rank's
    std::optional<std::string> failure;
  };

  MpiSession();
  void initialize();
  void meet();
  void say(int tag, std::string text, double patience);
  bool all_said() const;
  void wait_for_all();
  void leave() noexcept;
  [[noreturn]] void fail_at_exit(const std::string& text);

  double timeout_seconds_;
  bool owns_mpi_ = false;
  bool failed_ = false;
  int rank_ = 0;
  int size_ = 1;
  MPI_Comm tensors_ = MPI_COMM_NULL;
  MPI_Comm words_ = MPI_COMM_NULL;
  std::vector<Other> others_;     // by rank; this one's entry stays empty
  std::deque<std::string> said_;  // texts that MPI may still read
  std::vector<MPI_Request> saying_;
  std::vector<std::shared_ptr<void>> graveyard_;
};

}  // namespace cachedit::comm
