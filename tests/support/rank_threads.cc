#include "support/rank_threads.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fail.h"

namespace cachedit::test {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);

using Pair = std::pair<int64_t, int64_t>;  // (from, to)

/// What ranks share: the tensors under way between every pair, by their number since the start.
struct Post {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<Pair, int64_t>, at::Tensor> mail;
  std::map<Pair, int64_t> sent, expected;
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
    // A part is what the other rank's exchange of the same number sends, in whatever order the
    // exchanges are waited for.
    std::vector<int64_t> numbers;
    {
      const std::lock_guard lock(post_->mutex);
      for (const comm::Part& part : send) {
        const Pair pair{rank_, part.rank};
        post_->mail[{pair, post_->sent[pair]++}] = part.tensor.clone();
      }
      for (const comm::Part& part : receive) {
        numbers.push_back(post_->expected[{part.rank, rank_}]++);
      }
      post_->arrived.notify_all();
    }
    return comm::Pending(
        [this, parts = std::move(receive), numbers = std::move(numbers), name = std::string(what)] {
          for (size_t i = 0; i < parts.size(); ++i) take(parts[i], numbers[i], name);
        });
  }

 private:
  void take(const comm::Part& part, int64_t number, const std::string& what) {
    const std::pair<Pair, int64_t> key{{part.rank, rank_}, number};
    std::unique_lock lock(post_->mutex);
    const bool done = post_->arrived.wait_for(
        lock, kPatience, [&] { return post_->mail.count(key) != 0 || !post_->failure.empty(); });
    if (!done) fail<CommError>(what, "rank ", rank_, " got nothing from rank ", part.rank);
    const auto found = post_->mail.find(key);
    if (found == post_->mail.end()) fail<CommError>(what, post_->failure);
    const at::Tensor tensor = std::move(found->second);
    post_->mail.erase(found);
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
