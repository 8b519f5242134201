// What every denoising step of a run reused, taken from the contexts' counts after each step: those
// start again at a forced refresh, the trace does not.
#pragma once

#include <vector>

#include "cachedit/pipeline.h"

namespace cachedit::pipelines {

class CacheTracer {
 public:
  /// Call after each denoising step with the runner's statistics.
  void note(const std::vector<CacheStats>& now);

  /// One per context.
  std::vector<CacheTrace> take() { return std::move(traces_); }

 private:
  std::vector<CacheStats> before_;
  std::vector<CacheTrace> traces_;
};

}  // namespace cachedit::pipelines
