// Small blocks in place of a transformer's: what they do to the streams is known, and they count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/cached_block_runner.h"
#include "nn/block_runner.h"

namespace cachedit::test {

/// stream += strength * tanh(stream), for both streams; hidden also takes the mean of the encoder.
class SyntheticBlock final : public nn::Block {
 public:
  SyntheticBlock(double strength, bool writes_input)
      : strength_(strength), writes_input_(writes_input) {}

  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext& context) const override;
  int64_t calls() const { return calls_; }

 private:
  double strength_;
  bool writes_input_;
  mutable int64_t calls_ = 0;
};

/// A list of them, of rising strength.
class SyntheticList {
 public:
  /// With `writes_inputs`, blocks overwrite the tensors that they are handed.
  explicit SyntheticList(int64_t blocks, bool writes_inputs = false,
                         std::string_view name = "blocks");

  nn::BlockList list() const;
  /// Calls of all blocks so far; of one block.
  int64_t calls() const;
  int64_t calls(size_t block) const { return blocks_[block]->calls(); }

 private:
  std::string_view name_;
  std::vector<std::unique_ptr<SyntheticBlock>> blocks_;
  bool writes_inputs_;
};

/// The streams at `step` of a slow, smooth run: hidden [1, 8, 16] and encoder [1, 3, 16], other
/// ones for each `seed`. `speed` 1 changes a residual by some percent a step.
nn::Streams synthetic_input(int64_t step, uint64_t seed = 0, double speed = 1.0);

/// A runner with these DBCache options.
cache::RunnerOptions runner_options(const DBCacheConfig& config);
cache::RunnerOptions runner_options(const DBPruneConfig& config);

struct SyntheticRun {
  std::vector<nn::Streams> outputs;
  std::vector<CacheStats> stats;
};

/// `steps` passes over synthetic_input() through one runner.
SyntheticRun run_steps(nn::BlockRunner& runner, const SyntheticList& list, int64_t steps,
                       uint64_t seed = 0);
SyntheticRun run_steps(const cache::RunnerOptions& options, const SyntheticList& list,
                       int64_t steps, uint64_t seed = 0);

/// Whether all outputs are the same, bit by bit.
bool same_outputs(const SyntheticRun& a, const SyntheticRun& b);

}  // namespace cachedit::test
