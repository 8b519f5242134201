// Forecasts with fitted coefficients: at each reused step a weighted sum of the last computed
// values, whose weights minimize the squared error over recorded runs. TaylorSeer, FoCa and DMD are
// weighted sums of the same values with weights from theory (idea: arXiv 2604.26365).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/calibrators/calibrator.h"

namespace cachedit::cache {

/// Weights of one reused step for the values at `from`, the newest computed step first.
struct LinearWeights {
  std::vector<int64_t> from;
  std::vector<double> weights;
};

/// What `cachedit tune` stores beside a configuration.
struct LinearTable {
  int64_t num_inference_steps = 0;
  /// By context, then "hidden" or "encoder", then reused step.
  std::map<std::string, std::map<std::string, LinearSteps>> contexts;
};

class Linear final : public Forecaster {
 public:
  /// `steps` outlives the object.
  explicit Linear(const LinearSteps& steps) : steps_(steps) {}

  void update(const at::Tensor& value) override;
  /// Throws ConfigError where other steps were computed than the weights were fitted for.
  at::Tensor approximate() override;
  int64_t bytes() const override;

 private:
  const LinearSteps& steps_;
  std::deque<std::pair<int64_t, at::Tensor>> values_;  ///< step and value, newest first
};

/// Weights that minimize, over all samples, |target - sum_j weights[j] * sources[j]|^2 with a small
/// ridge; sources[sample][j] and target[sample] have equal shapes. Solved in float64.
std::vector<double> fit_weights(const std::vector<std::vector<at::Tensor>>& sources,
                                const std::vector<at::Tensor>& targets);

}  // namespace cachedit::cache
