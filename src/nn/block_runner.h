// The block seam: a transformer hands its list of blocks to a runner, which decides which of them
// run at this step. The plain runner runs all; caching is another runner, and models never know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "nn/arena.h"
#include "nn/modulation.h"
#include "nn/rotary.h"
#include "nn/streams.h"

namespace cachedit::nn {

/// What every block of one forward pass reads besides the streams.
struct BlockContext {
  ModulationTable* modulations = nullptr;  ///< of the run
  int64_t step = 0;                        ///< of the run, from 0
  const RotaryEmbedding* rotary = nullptr;
  const attention::Attention* attention = nullptr;
  Arena* arena = nullptr;  ///< for what blocks need inside; null: they allocate it
};

class Block {
 public:
  virtual ~Block() = default;
  virtual Streams forward(const Streams& streams, const BlockContext& context) const = 0;
};

/// A named list ("transformer_blocks"); the blocks belong to the model.
struct BlockList {
  std::string_view name;
  std::vector<const Block*> blocks;
  /// Blocks may overwrite the tensors that they are handed; a runner then keeps copies.
  bool writes_inputs = false;
};

/// Where in a run a forward pass stands.
struct StepInfo {
  int64_t step = 0;       ///< from 0
  int64_t num_steps = 1;  ///< of the run
  int64_t branch = 0;     ///< 0 conditional, 1 unconditional (true CFG)
};

class BlockRunner {
 public:
  virtual ~BlockRunner() = default;
  /// Runs lists that follow each other without anything in between, so that a runner may take them
  /// as one.
  virtual Streams run(const std::vector<BlockList>& lists, Streams streams,
                      const BlockContext& context, const StepInfo& step) = 0;
};

/// Runs every block in order.
class PlainBlockRunner final : public BlockRunner {
 public:
  Streams run(const std::vector<BlockList>& lists, Streams streams, const BlockContext& context,
              const StepInfo& step) override;
};

}  // namespace cachedit::nn
