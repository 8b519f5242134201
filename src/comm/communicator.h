// The communication seam: a group of ranks that exchange tensors. Everything that ranks do together
// is one primitive, exchange(), so a new kind of transport is one small class; the collectives that
// callers use are in collectives.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::comm {

/// What goes to one rank, or comes from it.
struct Part {
  int64_t rank = 0;
  at::Tensor tensor;
};

/// An operation under way. Its tensors must not be touched until wait() returned. Dropped without
/// wait() (an exception passed by), the operation is abandoned: what it would have received is
/// lost, and the communicator may not be used again.
class Pending {
 public:
  /// Done already.
  Pending() = default;
  /// `finish` completes the operation.
  explicit Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  /// Returns when the received tensors are complete and the sent ones may be changed. Later calls
  /// do nothing. Throws CommError if a rank failed, is gone, or does not answer in time.
  void wait();

 private:
  std::function<void()> finish_;
};

/// What this rank has sent and waited for so far.
struct Traffic {
  int64_t bytes_sent = 0;  ///< to other ranks
  int64_t messages_sent = 0;
  int64_t exchanges = 0;
  double seconds = 0;  ///< spent in starting exchanges and in wait()
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// How errors name a rank: "rank 2", within a subgroup the rank of the whole run.
  virtual std::string name_of(int64_t rank) const;
  /// Where exchanged tensors must be.
  virtual at::Device device() const { return at::kCPU; }

  /// Starts sending and receiving. All ranks of the group need not take part; for every pair, the
  /// parts that one sends and the other receives must agree in number, order, dtype and size, over
  /// all exchanges that both start. Any dtype; `send` of any strides; `receive` contiguous, and
  /// written. Parts without elements are passed over, those for the own rank copied. `what` names
  /// the operation in errors.
  Pending exchange(std::vector<Part> send, std::vector<Part> receive, std::string_view what);

  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

  /// Tells the other ranks, as far as the transport can, that this one gives up and why: their
  /// waits throw CommError with this text.
  virtual void announce_failure(const std::string& text) noexcept;
  /// What other ranks announced, by rank, collected until all have or `seconds` are over; empty
  /// for those that said nothing.
  virtual std::vector<std::string> collect_failures(double seconds);

 protected:
  /// exchange() of contiguous tensors with elements, with other ranks only. The result keeps the
  /// tensors alive until it is done.
  virtual Pending start(std::vector<Part> send, std::vector<Part> receive,
                        std::string_view what) = 0;

 private:
  Traffic traffic_;
};

/// One process alone.
class SingleProcess final : public Communicator {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }

 protected:
  Pending start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) override;
};

/// Some ranks of another communicator, which must outlive it, numbered by their place in `ranks`.
/// Making one needs no communication. Pairs of ranks may be in several subgroups; they exchange in
/// the order in which both call.
class Subgroup final : public Communicator {
 public:
  /// Throws CommError unless `ranks` are different ranks of `parent`, among them its own.
  Subgroup(Communicator& parent, std::vector<int64_t> ranks);

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  std::string name_of(int64_t rank) const override;
  at::Device device() const override { return parent_.device(); }
  void announce_failure(const std::string& text) noexcept override;

 protected:
  Pending start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) override;

 private:
  Communicator& parent_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = -1;
};

}  // namespace cachedit::comm
