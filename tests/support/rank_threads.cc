#include "support/rank_threads.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fail.h"

namespace cachedit::test {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

/// What ranks share: a queue of sent tensors for every pair.
struct Post {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int64_t, int64_t>, std::deque<at::Tensor>> mail;  // (from, to)
  std::string failure;
};

class ThreadRank final : public comm::Communicator {
 public:
  ThreadRank(std::shared_ptr<Post> post, int64_t rank, int64_t size)
      : post_(std::move(post)), rank_(rank), size_(size) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  void announce_failure(const std::string& text) noexcept override {
    const std::lock_guard lock(post_->mutex);
    if (post_->failure.empty()) post_->failure = text;
    post_->arrived.notify_all();
  }

 protected:
  comm::Pending start(std::vector<comm::Part> send, std::vector<comm::Part> receive,
                      std::string_view what) override {
    {
      const std::lock_guard lock(post_->mutex);
      for (const comm::Part& part : send) {
        post_->mail[{rank_, part.rank}].push_back(part.tensor.clone());
      }
      post_->arrived.notify_all();
    }
    return comm::Pending([this, parts = std::move(receive), name = std::string(what)] {
      for (const comm::Part& part : parts) take(part, name);
    });
  }

 private:
  void take(const comm::Part& part, const std::string& what) {
    std::unique_lock lock(post_->mutex);
    auto& queue = post_->mail[{part.rank, rank_}];
    const bool done = post_->arrived.wait_for(
        lock, kPatience, [&] { return !queue.empty() || !post_->failure.empty(); });
    if (!done) fail<CommError>(what, "rank ", rank_, " got nothing from rank ", part.rank);
    if (queue.empty()) fail<CommError>(what, post_->failure);
    const at::Tensor tensor = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    if (tensor.scalar_type() != part.tensor.scalar_type() ||
        tensor.numel() != part.tensor.numel()) {
      fail<CommError>(what, "rank ", part.rank, " sent ", tensor.scalar_type(), " ", tensor.sizes(),
                      ", rank ", rank_, " expects ", part.tensor.scalar_type(), " ",
                      part.tensor.sizes());
    }
    part.tensor.view(-1).copy_(tensor.view(-1));
  }

  std::shared_ptr<Post> post_;
  int64_t rank_;
  int64_t size_;
};

}  // namespace

void run_ranks(int64_t ranks, const std::function<void(comm::Communicator&)>& work) {
  const auto post = std::make_shared<Post>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const c10::InferenceMode inference;
      at::set_num_threads(1);
      ThreadRank rank(post, r, ranks);
      try {
        work(rank);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        rank.announce_failure(c10::str("rank ", r, " failed: ", error.what()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace cachedit::test
