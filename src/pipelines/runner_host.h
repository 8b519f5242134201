// What tools inside the library ask of a pipeline: a run through a block runner of their own.
#pragma once

#include "cachedit/pipeline.h"
#include "nn/block_runner.h"

namespace cachedit::pipelines {

class RunnerHost {
 public:
  virtual ~RunnerHost() = default;
  /// generate(), with `runner` in place of what caching would choose.
  virtual GenerateResult generate_with(const GenerateRequest& request,
                                       nn::BlockRunner& runner) const = 0;
};

}  // namespace cachedit::pipelines
