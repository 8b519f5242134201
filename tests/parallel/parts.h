// What the tests of attention over several ranks share: a whole sequence cut in the ranks' parts,
// and the comparison with one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "comm/communicator.h"
#include "parallel/context_parallel.h"

namespace cachedit::parallel {

struct Sequence {
  int64_t tokens = 1;
  int64_t heads = 1;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  int64_t batch = 1;
  int64_t head_dim = 16;
  at::ScalarType dtype = at::kFloat;
};

/// Seeded normal query, key and value of a whole sequence, asking for the lse.
attention::Inputs whole_inputs(const Sequence& sequence);

/// That rank's tokens, and of a mask its keys ([B, N], [B|1, 1, 1, N]) or rows.
attention::Inputs part_of(const attention::Inputs& whole, const std::vector<int64_t>& lengths,
                          int64_t rank);

/// That rank's entries of `dim`.
at::Tensor part_of(const at::Tensor& whole, const std::vector<int64_t>& lengths, int64_t rank,
                   int64_t dim);

/// A CPU backend's attention.
std::unique_ptr<attention::Attention> backend(const std::string& name);

/// One rank's call, with its part of the inputs.
using RankCall = std::function<attention::Result(comm::Communicator&, const attention::Inputs&)>;

RankCall ulysses_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                      const UlyssesOptions& options = {});
RankCall ring_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                   const RingOptions& options = {});

struct UspOptions {
  int64_t ring = 1;
  int64_t ulysses = 1;
  RingOptions ring_options = {};
  UlyssesOptions ulysses_options = {.anything = true};
};
/// Ulysses around Ring; `lengths` are those of all ring x ulysses ranks.
RankCall usp_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                  const UspOptions& options);

/// Of log-sum-exps in bf16 and fp16: on CPUs without AVX-512, LibTorch's kernel takes a quick exp
/// there, which leaves them 5e-5 from those in fp64, differently for each number of keys.
inline constexpr double kLse16Bit = 2e-4;

/// Expects every rank's rows of out and lse to be those of native attention on the whole sequence,
/// by the largest absolute difference.
void expect_as_one_rank(const attention::Inputs& whole, const std::vector<int64_t>& lengths,
                        const RankCall& call, double tolerance = 1e-5, double lse_tolerance = 1e-5);

/// Every rank's out, one after the other.
at::Tensor gathered_out(const attention::Inputs& whole, const std::vector<int64_t>& lengths,
                        const RankCall& call);

/// Notes what happens: "start" and "wait" for each exchange, and what a test adds.
using Events = std::vector<std::string>;

/// Another communicator, with its exchanges noted.
class RecordingCommunicator final : public comm::Communicator {
 public:
  RecordingCommunicator(comm::Communicator& parent, Events& events)
      : parent_(parent), events_(events) {}
  int64_t rank() const override { return parent_.rank(); }
  int64_t size() const override { return parent_.size(); }

 protected:
  comm::Pending start(std::vector<comm::Part> send, std::vector<comm::Part> receive,
                      std::string_view what) override;

 private:
  comm::Communicator& parent_;
  Events& events_;
};

/// Another attention, noted as "attend".
class RecordingAttention final : public attention::Attention {
 public:
  RecordingAttention(const Attention& inner, Events& events) : inner_(inner), events_(events) {}
  attention::Result operator()(const attention::Inputs& inputs) const override {
    events_.push_back("attend");
    return inner_(inputs);
  }

 private:
  const Attention& inner_;
  Events& events_;
};

}  // namespace cachedit::parallel
