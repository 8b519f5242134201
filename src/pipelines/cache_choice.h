// Whether and how a pipeline caches blocks: options checked against its transformer once, a runner
// of their own for every request.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cached_block_runner.h"
#include "cachedit/enable_cache.h"

namespace cachedit::pipelines {

/// A block list of the transformer, in the order in which it runs.
struct BlockCount {
  std::string name;
  int64_t blocks = 0;
};

/// Whether enable_cache() with these options changes caching, or only the attention backend.
bool chooses_caching(const EnableCacheOptions& options);

class CacheChoice {
 public:
  /// Throws ConfigError naming the field for a value out of range, or where the block counts do not
  /// fit `lists`; IoError or ConfigError for a file of linear coefficients. The choice is then as
  /// before.
  void choose(const EnableCacheOptions& options, const std::vector<BlockCount>& lists);
  void clear() { options_.reset(); }
  /// "DBCache_F8B0_W8I1M0MC0_R0.08_T0O0"; empty: caching is off.
  std::string name() const;

  struct Passes {
    bool separate_cfg = false;            ///< the pipeline runs a pass per guidance branch...
    bool one_branch = false;              ///< ...of which these ranks compute one only
    comm::Communicator* group = nullptr;  ///< ranks that compute a branch together
  };
  /// A runner for one request of `steps` steps; null: caching is off. Throws ConfigError where the
  /// options do not fit, UnsupportedError where one branch alone cannot decide as they say.
  std::unique_ptr<cache::CachedBlockRunner> make(int64_t steps, const Passes& passes) const;

 private:
  std::optional<cache::RunnerOptions> options_;
  std::string mask_policy_;  ///< empty: the options hold the mask
};

}  // namespace cachedit::pipelines
