// Tensor parallelism as data: which dimension of which weight is shared out among ranks
// (Megatron-LM, Shoeybi et al. 2019, arXiv 1909.08053).
#pragma once

#include <cstdint>
#include <string>
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

/// The numbers of ranks from 2 that divide `count`: "2, 3, 6"; "1" where none does.
std::string divisors_text(int64_t count);

}  // namespace cachedit::nn
