#include "comm/communicator.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/stopwatch.h"

namespace cachedit::comm {
namespace {

int64_t bytes_of(const std::vector<Part>& parts) {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += static_cast<int64_t>(part.tensor.nbytes());
  return bytes;
}

/// Copies what a rank sends to itself.
void copy_own(const std::vector<at::Tensor>& sent, const std::vector<at::Tensor>& received,
              std::string_view what) {
  if (sent.size() != received.size()) {
    fail<CommError>(what, "a rank must receive from itself what it sends to itself: got ",
                    sent.size(), " and ", received.size(), " parts");
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sent[i].numel() != received[i].numel() ||
        sent[i].scalar_type() != received[i].scalar_type()) {
      fail<CommError>(what, "a rank must receive from itself what it sends to itself: got ",
                      sent[i].scalar_type(), " ", sent[i].sizes(), " and ",
                      received[i].scalar_type(), " ", received[i].sizes());
    }
    received[i].view(sent[i].sizes()).copy_(sent[i]);
  }
}

/// What concerns other ranks stays in `parts`, contiguous; the own rank's parts are returned.
std::vector<at::Tensor> take_own(std::vector<Part>& parts, const Communicator& group, bool sent,
                                 std::string_view what) {
  std::vector<at::Tensor> own;
  std::vector<Part> others;
  for (Part& part : parts) {
    if (part.rank < 0 || part.rank >= group.size()) {
      fail<CommError>(what, "a rank must lie in 0..", group.size() - 1, ": got ", part.rank);
    }
    if (part.tensor.device() != group.device()) {
      fail<CommError>(what, "tensors must be on ", group.device(),
                      ", where these ranks exchange: ", "got one on ", part.tensor.device());
    }
    if (!sent && !part.tensor.is_contiguous()) {
      fail<CommError>(what, "what is received must be contiguous: got sizes ", part.tensor.sizes(),
                      ", strides ", part.tensor.strides());
    }
    if (part.tensor.numel() == 0) continue;
    if (part.rank == group.rank()) {
      own.push_back(std::move(part.tensor));
    } else {
      others.push_back({part.rank, sent ? part.tensor.contiguous() : std::move(part.tensor)});
    }
  }
  parts = std::move(others);
  return own;
}

}  // namespace

void Pending::wait() {
  if (!finish_) return;
  const std::function<void()> finish = std::exchange(finish_, nullptr);
  finish();
}

std::string Communicator::name_of(int64_t rank) const { return c10::str("rank ", rank); }

void Communicator::announce_failure(const std::string& /*text*/) noexcept {}

std::vector<std::string> Communicator::collect_failures(double /*seconds*/) {
  return std::vector<std::string>(static_cast<size_t>(size()));
}

Pending Communicator::exchange(std::vector<Part> send, std::vector<Part> receive,
                               std::string_view what) {
  const Stopwatch watch;
  const std::vector<at::Tensor> own = take_own(send, *this, true, what);
  copy_own(own, take_own(receive, *this, false, what), what);
  traffic_.bytes_sent += bytes_of(send);
  traffic_.messages_sent += static_cast<int64_t>(send.size());
  ++traffic_.exchanges;
  if (send.empty() && receive.empty()) return {};
  auto pending = std::make_shared<Pending>(start(std::move(send), std::move(receive), what));
  traffic_.seconds += watch.seconds();
  return Pending([this, pending] {
    const Stopwatch waiting;
    pending->wait();
    traffic_.seconds += waiting.seconds();
  });
}

Pending SingleProcess::start(std::vector<Part> /*send*/, std::vector<Part> /*receive*/,
                             std::string_view /*what*/) {
  return {};  // there are no other ranks
}

Subgroup::Subgroup(Communicator& parent, std::vector<int64_t> ranks)
    : parent_(parent), ranks_(std::move(ranks)) {
  const std::set<int64_t> distinct(ranks_.begin(), ranks_.end());
  const bool in_range = !distinct.empty() && *distinct.begin() >= 0 &&
                        *distinct.rbegin() < parent.size() && distinct.size() == ranks_.size();
  const auto own = std::find(ranks_.begin(), ranks_.end(), parent.rank());
  if (!in_range || own == ranks_.end()) {
    fail<CommError>("comm", "a group must consist of different ranks below ", parent.size(),
                    ", this one (", parent.rank(), ") among them: got ", ranks_);
  }
  rank_ = own - ranks_.begin();
}

std::string Subgroup::name_of(int64_t rank) const {
  return parent_.name_of(ranks_[static_cast<size_t>(rank)]);
}

void Subgroup::announce_failure(const std::string& text) noexcept {
  parent_.announce_failure(text);
}

Pending Subgroup::start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) {
  for (auto* parts : {&send, &receive}) {
    for (Part& part : *parts) part.rank = ranks_[static_cast<size_t>(part.rank)];
  }
  return parent_.exchange(std::move(send), std::move(receive), what);
}

}  // namespace cachedit::comm
