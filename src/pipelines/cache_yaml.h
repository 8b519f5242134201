// The fields of cache options as the keys of cache-dit's YAML files, for reading and writing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cachedit/enable_cache.h"

namespace cachedit::pipelines {

/// Reads a parsed file; `where` names it in errors, and relative paths in it start at `folder`.
/// Throws ConfigError as load_configs() does.
EnableCacheOptions parse_cache_configs(const nlohmann::json& root, const std::string& where,
                                       const std::filesystem::path& folder);

/// The text of a file that reads back as `options`. Throws ConfigError for what the format cannot
/// hold.
std::string cache_configs_text(const EnableCacheOptions& options,
                               const std::filesystem::path& folder);

}  // namespace cachedit::pipelines
