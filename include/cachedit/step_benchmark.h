// Measuring a transformer's step, and what its time goes into.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cachedit/export.h"
#include "cachedit/pipeline.h"
#include "cachedit/step_profile.h"

namespace cachedit {

struct StepBenchmark {
  std::vector<double> step_seconds;  ///< after a first step that is not counted
  StepProfile profile;               ///< of those steps together
  /// What this machine's instructions reach by themselves with the threads at hand, in operations
  /// per second: fp32 multiply-adds, bf16 and int8 dot products. Measured in the same run.
  double fp32_roof = 0;
  double bf16_roof = 0;
  double int8_roof = 0;
  std::string attention_backend;

  CACHEDIT_API double median_step() const;
};

/// Loads `model` and runs 1 + `steps` steps of `request`, whose output type becomes latents. Throws
/// as load_pipeline() and Pipeline::generate().
CACHEDIT_API StepBenchmark benchmark_step(const std::string& model, LoadOptions options,
                                          GenerateRequest request, int64_t steps,
                                          const std::string& attention_backend = {});

}  // namespace cachedit
