#include "comm/mpi_world.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <thread>

#include "base/fail.h"
#include "base/stopwatch.h"
#include "comm/mpi.h"
#include "comm/mpi_session.h"

namespace cachedit::comm {
namespace {

constexpr int kTag = 0;

// A waiting rank first keeps the processor, since most answers come at once, then shares it, then
// sleeps: eight ranks must run on two cores.
constexpr double kSpinSeconds = 50e-6;
constexpr double kYieldSeconds = 1e-3;
constexpr auto kNap = std::chrono::microseconds(50);  // and as much again by the timer's slack
constexpr double kListenSeconds = 1e-3;
constexpr double kLookSeconds = 0.1;
/// What a rank sent before it left may arrive after the word that it leaves.
constexpr double kLateSeconds = 2;

/// One MPI message: a tensor or a chunk of one.
struct Message {
  int rank = 0;
  int bytes = 0;
  bool received = false;
};

/// The messages of an exchange. Dropped before they are done, they go to the session's graveyard.
class Operation {
 public:
  Operation(MpiSession& session, std::string what) : session_(session), what_(std::move(what)) {}

  const std::string& what() const { return what_; }
  void add(const Part& part, bool received, int64_t chunk_bytes);
  /// Whether messages are done that were not at the last call.
  bool progress();
  bool done() const { return left_ == 0; }
  /// The ranks of messages that are not done.
  std::set<int> missing() const;

 private:
  void check(const Message& message, const MPI_Status& status) const;

  MpiSession& session_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  std::vector<Message> messages_;
  std::vector<MPI_Request> requests_;  // of these messages; null when done
  std::vector<MPI_Status> statuses_;   // room for progress()
  std::vector<int> finished_;
  size_t left_ = 0;
};

void Operation::add(const Part& part, bool received, int64_t chunk_bytes) {
  tensors_.push_back(part.tensor);
  auto* bytes = static_cast<char*>(received ? part.tensor.mutable_data_ptr()
                                            : const_cast<void*>(part.tensor.const_data_ptr()));
  const auto total = static_cast<int64_t>(part.tensor.nbytes());
  const int rank = static_cast<int>(part.rank);
  for (int64_t begin = 0; begin < total; begin += chunk_bytes) {
    const int count = static_cast<int>(std::min(chunk_bytes, total - begin));
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        received
            ? MPI_Irecv(bytes + begin, count, MPI_BYTE, rank, kTag, session_.tensors(), &request)
            : MPI_Isend(bytes + begin, count, MPI_BYTE, rank, kTag, session_.tensors(), &request),
        what_);
    requests_.push_back(request);
    messages_.push_back({rank, count, received});
    ++left_;
  }
}

bool Operation::progress() {
  statuses_.resize(requests_.size());
  finished_.resize(requests_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                finished_.data(), statuses_.data());
  if (code != MPI_ERR_IN_STATUS) check_mpi(code, what_);
  if (count == MPI_UNDEFINED || count == 0) return false;
  left_ -= static_cast<size_t>(count);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    // The field is set only where MPI says so.
    if (code == MPI_SUCCESS) statuses_[i].MPI_ERROR = MPI_SUCCESS;
    check(messages_[static_cast<size_t>(finished_[i])], statuses_[i]);
  }
  return true;
}

void Operation::check(const Message& message, const MPI_Status& status) const {
  int fault = MPI_SUCCESS, bytes = 0;
  MPI_Error_class(status.MPI_ERROR, &fault);
  const bool too_long = fault == MPI_ERR_TRUNCATE;
  if (!too_long) check_mpi(status.MPI_ERROR, what_);
  if (!message.received) return;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (!too_long && bytes == message.bytes) return;
  fail<CommError>(what_, "ranks must agree on sizes: rank ", message.rank, " sent ",
                  too_long ? "more" : c10::str(bytes, " bytes"), " where rank ", session_.rank(),
                  " expects ", message.bytes, " bytes");
}

std::set<int> Operation::missing() const {
  std::set<int> ranks;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) ranks.insert(messages_[i].rank);
  }
  return ranks;
}

std::string list_of(const std::set<int>& ranks) {
  std::ostringstream text;
  for (const int rank : ranks) text << (rank == *ranks.begin() ? "rank " : ", ") << rank;
  return text.str();
}

/// What a rank does between two looks at its messages: it makes way for others, and makes sure that
/// these will come.
class Waiting {
 public:
  Waiting(MpiSession& session, const Operation& operation)
      : session_(session), operation_(operation) {}

  void progressed() {
    since_progress_.restart();
    since_left_.reset();
  }

  void pause() {
    const double waited = since_progress_.seconds();
    if (waited > kYieldSeconds) {
      std::this_thread::sleep_for(kNap);
    } else if (waited > kSpinSeconds) {
      sched_yield();
    }
    if (since_listening_.seconds() < kListenSeconds) return;
    since_listening_.restart();
    session_.listen();
    session_.check_said(operation_.what());
    if (since_look_.seconds() < kLookSeconds) return;
    since_look_.restart();
    session_.check_alive(operation_.what());
    check_still_there();
    if (waited > session_.timeout_seconds()) {
      fail<CommError>(operation_.what(), "rank ", session_.rank(), " waited ",
                      session_.timeout_seconds(), " seconds for ", list_of(operation_.missing()),
                      " in vain; CACHEDIT_COMM_TIMEOUT sets how long");
    }
  }

 private:
  void check_still_there() {
    const std::set<int> missing = operation_.missing();
    const auto left = std::find_if(missing.begin(), missing.end(),
                                   [this](int rank) { return session_.has_left(rank); });
    if (left == missing.end()) return;
    if (!since_left_) since_left_.emplace();
    if (since_left_->seconds() < kLateSeconds) return;
    fail<CommError>(operation_.what(), "rank ", *left, " has ended, while rank ", session_.rank(),
                    " waited for it: all ranks must run the same program");
  }

  MpiSession& session_;
  const Operation& operation_;
  Stopwatch since_progress_, since_listening_, since_look_;
  std::optional<Stopwatch> since_left_;
};

void complete(MpiSession& session, Operation& operation) {
  Waiting waiting(session, operation);
  try {
    while (true) {
      if (operation.progress()) waiting.progressed();
      if (operation.done()) return;
      waiting.pause();
    }
  } catch (const std::exception&) {
    session.mark_failed();
    throw;
  }
}

class MpiWorld final : public Communicator {
 public:
  explicit MpiWorld(int64_t chunk_bytes)
      : session_(MpiSession::instance()), chunk_bytes_(chunk_bytes) {}

  int64_t rank() const override { return session_.rank(); }
  int64_t size() const override { return session_.size(); }
  void announce_failure(const std::string& text) noexcept override;
  std::vector<std::string> collect_failures(double seconds) override;

 protected:
  Pending start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) override;

 private:
  MpiSession& session_;
  int64_t chunk_bytes_;
};

void MpiWorld::announce_failure(const std::string& text) noexcept {
  try {
    session_.announce_failure(text);
  } catch (const std::exception&) {
    // The rank is failing already, and its own error is the one to report.
  }
}

std::vector<std::string> MpiWorld::collect_failures(double seconds) {
  const Stopwatch watch;
  while (true) {
    session_.listen();
    if (session_.heard_all() || watch.seconds() >= seconds) return session_.announced();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Pending MpiWorld::start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) {
  if (session_.failed()) {
    fail<CommError>(what, "an earlier exchange failed: rank ", rank(),
                    " and the others have lost step; end all of them");
  }
  MpiSession& session = session_;
  // Dropped before it is done, an operation is kept: MPI may still read and write its tensors.
  std::shared_ptr<Operation> operation(new Operation(session, std::string(what)),
                                       [&session](Operation* dropped) {
                                         std::shared_ptr<Operation> owner(dropped);
                                         if (dropped->done()) return;
                                         session.mark_failed();
                                         session.keep(std::move(owner));
                                       });
  try {
    for (const Part& part : receive) operation->add(part, true, chunk_bytes_);
    for (const Part& part : send) operation->add(part, false, chunk_bytes_);
  } catch (const std::exception&) {
    session.mark_failed();
    throw;
  }
  return Pending([&session, operation] { complete(session, *operation); });
}

}  // namespace

bool built_with_mpi() { return true; }

std::shared_ptr<Communicator> make_mpi_world(int64_t chunk_bytes) {
  return std::make_shared<MpiWorld>(chunk_bytes);
}

std::shared_ptr<Communicator> mpi_world() { return make_mpi_world(kMpiChunkBytes); }

}  // namespace cachedit::comm
