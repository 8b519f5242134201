// Block caching in the JSON report, and the figures of --compare-cache.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cachedit/enable_cache.h"
#include "cachedit/image.h"
#include "cachedit/pipeline.h"

namespace cachedit::cli {

/// Every field of the options, under its name; null without caching.
nlohmann::ordered_json cache_settings_json(const std::optional<EnableCacheOptions>& options);

/// One object per context of a call. `call` counts them from 0.
nlohmann::ordered_json cache_stats_json(const GenerateResult& result, int64_t call);

/// One prompt drawn without and with caching.
struct CachePair {
  double plain_seconds = 0;  ///< of the denoising
  double cached_seconds = 0;
  double psnr = 0;  ///< dB, the mean of its pictures
};

CachePair compare_pair(const GenerateResult& plain, const GenerateResult& cached);

/// "plain 0.210 s, cached 0.065 s: 3.23x at 38.9 dB"
std::string pair_text(const CachePair& pair);

/// The same of all pairs: sums of the times, mean of the PSNRs.
CachePair total_of(const std::vector<CachePair>& pairs);

}  // namespace cachedit::cli
