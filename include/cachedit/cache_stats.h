// What caching did in a request: which steps were reused, and how the decisions fell.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cachedit {

/// One guidance branch of one context. Steps count from 0, or from the last forced refresh.
struct CacheBranchStats {
  std::vector<int64_t> cached_steps;
  /// Step and its relative differences: one with DBCache, one per decided block with DBPrune.
  /// Special values: -1 threshold of 1 or more (nothing was measured), -2 the shape had changed.
  std::vector<std::pair<int64_t, std::vector<double>>> residual_diffs;
  /// DBPrune: blocks skipped, and blocks in all, per step.
  std::vector<int64_t> pruned_blocks;
  std::vector<int64_t> actual_blocks;
  /// Over forced refreshes.
  int64_t accumulated_cached_steps = 0;
};

struct CacheStats {
  std::string name;    ///< of the context: the block list
  std::string config;  ///< as strify() writes it
  CacheBranchStats conditional;
  CacheBranchStats unconditional;          ///< empty without separate CFG
  int64_t executed_steps = 0;              ///< denoising steps
  int64_t transformer_executed_steps = 0;  ///< forward passes
  int64_t peak_buffer_bytes = 0;           ///< tensors that the context kept, at most
};

}  // namespace cachedit
