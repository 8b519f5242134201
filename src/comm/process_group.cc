#include "comm/process_group.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <utility>

#include "base/fail.h"

namespace cachedit::comm {
namespace {

constexpr int kTag = 0;
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

/// The devices that NCCL serves in this group, if any: a group may have Gloo for the CPU besides.
bool has_nccl(c10d::ProcessGroup& group) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  const bool cuda = std::any_of(devices.begin(), devices.end(),
                                [](const c10::Device& device) { return device.is_cuda(); });
  return cuda && group.getBackend(c10::DeviceType::CUDA)->getBackendName() == "nccl";
}

/// Runs `action`, errors of c10d as CommError.
template <class Action>
auto translated(const std::string& what, int64_t rank, const Action& action) {
  std::string text;
  try {
    return action();
  } catch (const CommError&) {
    throw;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  fail<CommError>(what, "the process group failed on rank ", rank, ": ", text);
}

class ProcessGroupRanks final : public Communicator {
 public:
  explicit ProcessGroupRanks(c10::intrusive_ptr<c10d::ProcessGroup> group)
      : group_(std::move(group)), device_(at::kCPU) {
    if (has_nccl(*group_)) {
      device_ = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->getDevice();
    }
  }

  int64_t rank() const override { return group_->getRank(); }
  int64_t size() const override { return group_->getSize(); }
  at::Device device() const override { return device_; }

 protected:
  Pending start(std::vector<Part> send, std::vector<Part> receive, std::string_view what) override;

 private:
  Works start_works(const std::vector<Part>& send, const std::vector<Part>& receive);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Device device_;
};

/// Backends know few dtypes, all of them bytes.
std::vector<at::Tensor> bytes_of(const Part& part) {
  return {part.tensor.view(-1).view(at::kByte)};
}

Works ProcessGroupRanks::start_works(const std::vector<Part>& send,
                                     const std::vector<Part>& receive) {
  // NCCL runs its calls one after the other, so two ranks that both send first would wait for ever;
  // within a group of calls there is no order.
  const bool grouped = device_.is_cuda();
  Works works;
  if (grouped) group_->startCoalescing(device_.type());
  for (const Part& part : receive) {
    std::vector<at::Tensor> bytes = bytes_of(part);
    works.push_back(group_->recv(bytes, static_cast<int>(part.rank), kTag));
  }
  for (const Part& part : send) {
    std::vector<at::Tensor> bytes = bytes_of(part);
    works.push_back(group_->send(bytes, static_cast<int>(part.rank), kTag));
  }
  if (grouped) works = {group_->endCoalescing(device_.type())};
  return works;
}

Pending ProcessGroupRanks::start(std::vector<Part> send, std::vector<Part> receive,
                                 std::string_view what) {
  const std::string name(what);
  Works works = translated(name, rank(), [&] { return start_works(send, receive); });
  // The parts stay with the works: c10d does not own what it sends. On a CUDA device wait() orders
  // the current stream after the transfer and does not hold up this thread.
  return Pending([name, own = rank(), works = std::move(works), sent = std::move(send),
                  received = std::move(receive)] {
    for (const auto& work : works) {
      if (work) translated(name, own, [&] { return work->wait(); });
    }
  });
}

}  // namespace

std::shared_ptr<Communicator> process_group(const std::string& name) {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10d::resolve_process_group(name);
  } catch (const c10::Error& error) {
    fail<InputError>("process_group", "torch.distributed must know the group: got '", name,
                     "'; pass the group_name of a group that this process has made");
  }
  return std::make_shared<ProcessGroupRanks>(std::move(group));
}

}  // namespace cachedit::comm
