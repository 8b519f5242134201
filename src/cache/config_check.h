// Rules that cache options must keep, with errors that name the field.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "cache/calibrators/linear.h"
#include "cachedit/cache_config.h"

namespace cachedit::cache {

/// What one context runs with; prune fields matter to CacheType::kDBPrune only.
struct CacheOptions {
  CacheType type = CacheType::kDBCache;
  DBPruneConfig config;
  std::optional<CalibratorConfig> calibrator;
  std::shared_ptr<const LinearTable> linear;  ///< for CalibratorType::kLinear
};

/// Throws ConfigError for a value out of range.
void check(const CacheOptions& options);

/// Throws ConfigError where the options do not fit a list of `blocks` blocks, or a request of
/// `steps` steps.
void check_blocks(const CacheOptions& options, int64_t blocks, std::string_view list);
void check_steps(const CacheOptions& options, int64_t steps);

}  // namespace cachedit::cache
