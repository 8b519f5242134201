#include "comm/mpi_session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "base/fail.h"
#include "base/stopwatch.h"
#include "comm/mpi_environment.h"

namespace cachedit::comm {
namespace {

// Tags of what ranks say.
constexpr int kFailed = 1;        // for a reason of its own
constexpr int kFailedInTurn = 2;  // because another rank did
constexpr int kLeaving = 3;       // at the end of the program

/// Short enough for every transport to send without the receiver's help (shared memory: 4096).
constexpr size_t kLongestText = 3000;
/// How long a failing rank tries to hand its text over.
constexpr double kSayingSeconds = 0.5;
/// How long a rank that is at its end lets others report a failure, before its exit ends them.
constexpr double kLingerSeconds = 2;
/// How long the last words of a rank that is gone are waited for; launchers end the others soon.
constexpr double kLastWordsSeconds = 0.2;

void nap(int64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

std::string shortened(const std::string& text) {
  if (text.size() <= kLongestText) return text;
  size_t end = kLongestText;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // not within a UTF-8 character
  return text.substr(0, end) + "...";
}

std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string whole(text, static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

MPI_Comm copy_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "mpi");
  // A fault must become an exception here; by default MPI would end the process.
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "mpi");
  return copy;
}

}  // namespace

void check_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  fail<CommError>(what, "MPI failed: got code ", code, ", ",
                  std::string(text, static_cast<size_t>(length)));
}

MpiSession& MpiSession::instance() {
  static MpiSession* const session = new MpiSession;
  return *session;
}

MpiSession::MpiSession() : timeout_seconds_(comm_timeout(environment())) {
  initialize();
  tensors_ = copy_of_world();
  words_ = copy_of_world();
  check_mpi(MPI_Comm_rank(tensors_, &rank_), "mpi");
  check_mpi(MPI_Comm_size(tensors_, &size_), "mpi");
  const int64_t launched = launched_ranks(environment());
  if (size_ == 1 && launched > 1) {
    fail<UnsupportedError>("mpi", "the launcher and the MPI library must belong together: got ",
                           launched, " processes, each of which ", library_name(),
                           " sees alone; start them with this library's mpirun, or under Slurm "
                           "with srun --mpi=pmix");
  }
  meet();
  std::atexit([] { instance().leave(); });
}

void MpiSession::initialize() {
  int initialized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  if (initialized != 0) {  // by the program that uses this library; it finalizes, too
    MPI_Query_thread(&provided);
  } else {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "mpi");
    owns_mpi_ = true;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    fail<UnsupportedError>("mpi", "MPI must allow calls from every thread, one at a time: got ",
                           library_name(), " at thread level ", provided,
                           "; use a build of it with threads");
  }
}

void MpiSession::meet() {
  const ProcessIdentity own = own_identity();
  std::vector<ProcessIdentity> all(static_cast<size_t>(size_));
  check_mpi(MPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, words_),
            "mpi");
  others_.resize(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    others_[r].process = all[r];
    others_[r].near = same_machine(all[r], own);
  }
}

void MpiSession::listen() {
  while (true) {
    int arrived = 0, bytes = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, words_, &arrived, &status), "mpi");
    if (arrived == 0) return;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "mpi");
    std::string text(static_cast<size_t>(bytes), '\0');
    check_mpi(MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, words_,
                       MPI_STATUS_IGNORE),
              "mpi");
    Other& other = others_[static_cast<size_t>(status.MPI_SOURCE)];
    if (status.MPI_TAG == kLeaving) {
      other.left = true;
    } else {
      other.failure = std::move(text);
      other.first_hand = status.MPI_TAG == kFailed;
    }
  }
}

void MpiSession::check_said(std::string_view what) const {
  const auto first_hand = [](const Other& other) { return other.failure && other.first_hand; };
  const auto failed = [](const Other& other) { return other.failure.has_value(); };
  auto found = std::find_if(others_.begin(), others_.end(), first_hand);
  if (found == others_.end()) found = std::find_if(others_.begin(), others_.end(), failed);
  if (found == others_.end()) return;
  fail<CommError>(what, "rank ", found - others_.begin(), " failed, while rank ", rank_,
                  " waited: ", *found->failure);
}

void MpiSession::check_alive(std::string_view what) {
  for (size_t r = 0; r < others_.size(); ++r) {
    const Other& other = others_[r];
    if (!other.near || other.left || !is_gone(other.process)) continue;
    // Its last words, or those of a rank that it ended for, may be on their way.
    const Stopwatch watch;
    do {
      listen();
      check_said(what);
      if (other.left) break;
      nap(1000);
    } while (watch.seconds() < kLastWordsSeconds);
    if (other.left) continue;
    fail<CommError>(what, "rank ", r, " (pid ", other.process.pid,
                    ") is gone: it was killed or crashed, while rank ", rank_, " waited in ", what);
  }
}

bool MpiSession::all_said() const {
  int done = 1;
  // Does not release the requests, so it may be asked again.
  for (const MPI_Request& request : saying_) {
    check_mpi(MPI_Request_get_status(request, &done, MPI_STATUS_IGNORE), "mpi");
    if (done == 0) return false;
  }
  return true;
}

void MpiSession::say(int tag, std::string text, double patience) {
  said_.push_back(std::move(text));
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    saying_.emplace_back();
    check_mpi(MPI_Isend(said_.back().data(), static_cast<int>(said_.back().size()), MPI_BYTE, r,
                        tag, words_, &saying_.back()),
              "mpi");
  }
  const Stopwatch watch;
  while (!all_said() && watch.seconds() < patience) nap(100);
}

void MpiSession::announce_failure(const std::string& text) {
  const bool in_turn = std::any_of(others_.begin(), others_.end(),
                                   [](const Other& other) { return other.failure.has_value(); });
  mark_failed();
  say(in_turn ? kFailedInTurn : kFailed, shortened(text), kSayingSeconds);
}

std::vector<std::string> MpiSession::announced() const {
  std::vector<std::string> texts;
  for (const Other& other : others_) texts.push_back(other.failure.value_or(""));
  return texts;
}

bool MpiSession::heard_all() const {
  for (int r = 0; r < size_; ++r) {
    const Other& other = others_[static_cast<size_t>(r)];
    if (r == rank_ || other.failure || other.left) continue;
    if (!other.near || !is_gone(other.process)) return false;
  }
  return true;
}

void MpiSession::wait_for_all() {
  const Stopwatch watch;
  while (true) {
    listen();
    check_said("exit");
    const auto left = std::count_if(others_.begin(), others_.end(),
                                    [](const Other& other) { return other.left; });
    if (left == size_ - 1 && all_said()) return;
    check_alive("exit");
    if (watch.seconds() > timeout_seconds_) {
      fail<CommError>("exit", "rank ", rank_, " waited ", timeout_seconds_,
                      " seconds for the others to end; CACHEDIT_COMM_TIMEOUT sets how long");
    }
    nap(1000);
  }
}

void MpiSession::leave() noexcept {
  if (!owns_mpi_ || failed_) return;
  try {
    say(kLeaving, "", 0);
    wait_for_all();
    MPI_Waitall(static_cast<int>(saying_.size()), saying_.data(), MPI_STATUSES_IGNORE);
    MPI_Finalize();
  } catch (const std::exception& error) {
    fail_at_exit(error.what());
  }
}

void MpiSession::fail_at_exit(const std::string& text) {
  // MPI_Finalize would wait for a rank that failed in vain, and an exit code of 0 would say that
  // the run went well.
  std::fprintf(stderr, "cachedit: rank %d had finished: %s\n", rank_, text.c_str());
  std::fflush(nullptr);
  try {
    const Stopwatch watch;
    // Those that have not heard yet that this rank was done would take it for killed.
    while (!(heard_all() && all_said()) && watch.seconds() < kLingerSeconds) {
      listen();
      nap(1000);
    }
  } catch (const std::exception&) {  // of a connection that broke: the text above is out
  }
  _exit(EXIT_FAILURE);
}

}  // namespace cachedit::comm
