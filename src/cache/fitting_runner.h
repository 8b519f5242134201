// A run that learns the linear calibrator's weights: steps that a mask computes run as ever; at the
// others the blocks run too, the weights are fitted to what they gave, and the run goes on with the
// forecast, so that later weights see the errors of earlier ones.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "cache/calibrators/linear.h"
#include "nn/block_runner.h"

namespace cachedit::cache {

/// The mask of steps that are computed; a forecast uses at most `history` computed values.
struct FittingOptions {
  std::vector<int64_t> steps_computation_mask;
  int64_t history = 3;
};

/// For static_skips_Fn_blocks and no Bn blocks: the forecast residual is that of all blocks of all
/// lists together. Batch items are the samples of the fit; a second guidance branch takes the
/// weights of the first.
class FittingRunner final : public nn::BlockRunner {
 public:
  explicit FittingRunner(FittingOptions options) : options_(std::move(options)) {}

  nn::Streams run(const std::vector<nn::BlockList>& lists, nn::Streams streams,
                  const nn::BlockContext& context, const nn::StepInfo& step) override;

  /// Of the run so far, under the name of the first list.
  LinearTable table() const { return table_; }

 private:
  using History = std::deque<std::pair<int64_t, at::Tensor>>;  ///< step and residual, newest first

  const LinearWeights& fit(const History& history, const at::Tensor& residual, int64_t step);

  FittingOptions options_;
  LinearTable table_;
  std::string context_;
  std::vector<History> branches_;
};

}  // namespace cachedit::cache
