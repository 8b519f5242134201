// Tensor parallelism as data: which dimension of which weight is shared out among ranks
// (Megatron-LM, Shoeybi et al. 2019, arXiv 1909.08053).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::nn {

enum class Shard {
  /// A Linear's outputs: each rank computes some of them.
  kColumns,
  /// The same, and every rank then collects all outputs.
  kGatheredColumns,
  /// A Linear's inputs: each rank has some of them, and the partial outputs are summed.
  kRows,
  /// The last dimension of a tensor that is taken by itself.
  kLastDim,
};

struct ShardRule {
  /// A layer's name in the checkpoint, "*" standing for one part: "blocks.*.attn.to_q".
  std::string_view layer;
  Shard shard = Shard::kColumns;
  /// The dimension consists of parts of these sizes one after the other, of which each rank gets
  /// its share; empty: one part.
  std::vector<int64_t> parts = {};
};

/// What a component's loading needs to know. Layers without a rule are whole on every rank.
struct TensorParallel {
  comm::Communicator* group = nullptr;  ///< null: everything is whole
  std::vector<ShardRule> rules = {};
};

/// The parts of dimension `dim` that `rule` gives to this rank of `group`, one after the other; a
/// view where they lie in one piece.
at::Tensor share_of(const at::Tensor& whole, int64_t dim, const ShardRule& rule,
                    const comm::Communicator& group);

}  // namespace cachedit::nn
