// Reads the runs of tests/goldens/make_cache_runs.py: requests, cache options and decisions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cachedit/cachedit.h"

namespace cachedit::test {

/// Of "request". The output is latents.
GenerateRequest golden_request(const nlohmann::json& request);

/// Of a whole run: type, cache, mask_policy, calibrator, modifiers, separate_block_lists. Separate
/// CFG is off unless the run says otherwise.
EnableCacheOptions golden_cache_options(const nlohmann::json& run);

/// Of "cache"; with DBCache, the part of DBCacheConfig counts.
DBPruneConfig golden_config(const nlohmann::json& fields);

CalibratorConfig golden_calibrator(const nlohmann::json& fields);

}  // namespace cachedit::test
