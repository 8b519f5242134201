// Forecasts of a tensor from its values at the steps that were computed, one state per tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "cachedit/cache_config.h"

namespace cachedit::cache {

struct LinearWeights;
using LinearSteps = std::map<int64_t, LinearWeights>;

/// The history of one tensor. Steps are counted from the first one after its creation, as
/// cache-dit counts them: the step that creates a state is number -1.
class Forecaster {
 public:
  virtual ~Forecaster() = default;
  void begin_step() { ++step_; }
  /// Records the value at a computed step. It is kept: nobody may write into it afterwards.
  virtual void update(const at::Tensor& value) = 0;
  /// The forecast at the current step; at least one update() came before. May be a kept tensor.
  virtual at::Tensor approximate() = 0;
  /// Of the tensors that it keeps.
  virtual int64_t bytes() const = 0;

 protected:
  int64_t step_ = -1;
};

/// The forecasters of one context and branch, one per slot (a block list's middle, or a block).
class Calibrator {
 public:
  /// `weights` for the linear calibrator, else null. Throws ConfigError for options out of range,
  /// naming the field.
  Calibrator(const CalibratorConfig& config, const LinearSteps* weights);

  void begin_step();
  void update(const at::Tensor& value, int64_t slot);
  /// Undefined before the first update of the slot.
  at::Tensor approximate(int64_t slot);
  int64_t bytes() const;

 private:
  std::function<std::unique_ptr<Forecaster>()> make_;
  std::map<int64_t, std::unique_ptr<Forecaster>> states_;
};

/// Throws ConfigError for options out of range, naming the field.
void check(const CalibratorConfig& config);

}  // namespace cachedit::cache
