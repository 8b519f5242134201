#include <ATen/ops/empty.h>

#include <numeric>

#include "base/fail.h"
#include "comm/collectives.h"
#include "parallel/context_call.h"
#include "parallel/context_parallel.h"
#include "parallel/merge_states.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using attention::Result;

constexpr const char* kWhere = "ring";

/// One rank's keys.
struct Keys {
  at::Tensor key;
  at::Tensor value;
  at::Tensor mask;  ///< [B|1, 1, 1, n]; undefined where no mask travels
};

/// Memory for tensors like one, one after the other: each lives until the next but one.
class Alternating {
 public:
  /// Sizes of `dim` up to `longest`.
  Alternating(const at::Tensor& like, int64_t dim, int64_t longest)
      : shape_(like.sizes().vec()), dim_(static_cast<size_t>(dim)), options_(like.options()) {
    shape_[dim_] = longest;
    largest_ = c10::multiply_integers(shape_);
  }

  at::Tensor next(int64_t size) {
    at::Tensor& memory = memory_[turn_];
    turn_ = 1 - turn_;
    if (!memory.defined()) memory = at::empty({largest_}, options_);
    shape_[dim_] = size;
    return memory.narrow(0, 0, c10::multiply_integers(shape_)).view(shape_);
  }

 private:
  std::vector<int64_t> shape_;
  size_t dim_;
  at::TensorOptions options_;
  int64_t largest_ = 0;
  at::Tensor memory_[2];
  size_t turn_ = 0;
};

class RingAttention final : public attention::Attention {
 public:
  RingAttention(const Attention& inner, comm::Communicator& group, std::vector<int64_t> lengths,
                const RingOptions& options)
      : inner_(inner), group_(group), lengths_(std::move(lengths)), options_(options) {}

  Result operator()(const Inputs& in) const override {
    if (group_.size() == 1) return inner_(in);
    check_context_call(kWhere, in, tokens_of(group_.rank()));
    Inputs checked = in;
    checked.under_context_parallelism = true;
    const ContextMask mask = read_mask(in);
    const bool p2p = options_.rotate_method == RingRotateMethod::kP2P;
    return p2p ? pass_around(checked, mask) : gather_all(checked, mask);
  }

 private:
  int64_t tokens_of(int64_t rank) const { return lengths_[static_cast<size_t>(rank)]; }
  int64_t first_token_of(int64_t rank) const {
    return std::accumulate(lengths_.begin(), lengths_.begin() + rank, int64_t{0});
  }

  ContextMask read_mask(const Inputs& in) const {
    ContextMask mask = read_context_mask(kWhere, in.mask, in.query);
    const int64_t total = first_token_of(group_.size());
    // Ranks without tokens could not tell which form the mask of the only token has.
    if (total == 1 && mask.form == MaskForm::kRows && mask.tensor.size(1) == 1) {
      const int64_t batch = mask.tensor.size(0);
      return {MaskForm::kKeys, mask.tensor.reshape({batch, 1, 1, tokens_of(group_.rank())})};
    }
    if (mask.form == MaskForm::kRows && mask.tensor.size(3) != total) {
      fail<InputError>(kWhere, "a mask of queries by keys must have the keys of all ranks, ", total,
                       ", as columns: got ", in.mask.sizes());
    }
    return mask;
  }

  Result gather_all(Inputs in, const ContextMask& mask) const {
    in.key = comm::all_gather(group_, in.key, lengths_, 1);
    in.value = comm::all_gather(group_, in.value, lengths_, 1);
    in.mask = mask.form == MaskForm::kKeys ? comm::all_gather(group_, mask.tensor, lengths_, 3)
                                           : mask.tensor;
    return inner_(in);
  }

  Result pass_around(const Inputs& in, const ContextMask& mask) const {
    const int64_t ranks = group_.size();
    const int64_t longest = *std::max_element(lengths_.begin(), lengths_.end());
    const bool masked = mask.form == MaskForm::kKeys;
    Keys now{in.key, in.value, masked ? mask.tensor : at::Tensor()};
    Alternating keys(in.key, 1, longest), values(in.value, 1, longest);
    std::optional<Alternating> masks;
    if (masked) masks.emplace(mask.tensor, 3, longest);
    MergedStates merged(options_.convert_to_fp32);
    for (int64_t step = 0; step < ranks; ++step) {
      const int64_t owner = (group_.rank() + ranks - step) % ranks;
      Keys next;
      comm::Pending pending;
      if (step + 1 < ranks) {
        const int64_t coming = tokens_of((owner + ranks - 1) % ranks);
        next = {keys.next(coming), values.next(coming), masks ? masks->next(coming) : at::Tensor()};
        pending = pass_on(now, next);
      }
      Inputs part = in;
      part.key = now.key;
      part.value = now.value;
      part.mask = mask.form == MaskForm::kRows
                      ? mask.tensor.narrow(3, first_token_of(owner), tokens_of(owner))
                      : now.mask;
      part.return_lse = true;
      merged.add(attend_meanwhile(part, pending));
      pending.wait();
      now = std::move(next);
    }
    return merged.finish(in.query.scalar_type(), in.return_lse);
  }

  comm::Pending pass_on(const Keys& send, const Keys& receive) const {
    std::vector<at::Tensor> outgoing = {send.key, send.value};
    std::vector<at::Tensor> incoming = {receive.key, receive.value};
    if (send.mask.defined()) {
      outgoing.push_back(send.mask);
      incoming.push_back(receive.mask);
    }
    return comm::rotate(group_, outgoing, incoming, kWhere);
  }

  /// Where the backend refuses, it does so on all ranks: the exchange is then brought to its end,
  /// so that no message is left over for what they do next.
  Result attend_meanwhile(const Inputs& part, comm::Pending& pending) const {
    try {
      return inner_(part);
    } catch (...) {
      try {
        pending.wait();
      } catch (const CommError&) {
        // The first error is the one to tell.
      }
      throw;
    }
  }

  const Attention& inner_;
  comm::Communicator& group_;
  std::vector<int64_t> lengths_;
  RingOptions options_;
};

}  // namespace

std::unique_ptr<attention::Attention> make_ring(const attention::Attention& inner,
                                                comm::Communicator& group,
                                                std::vector<int64_t> lengths,
                                                const RingOptions& options) {
  check_lengths(kWhere, group, lengths);
  return std::make_unique<RingAttention>(inner, group, std::move(lengths), options);
}

}  // namespace cachedit::parallel
