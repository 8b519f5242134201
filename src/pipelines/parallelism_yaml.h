// The parallelism_config section of a configuration file, in cache-dit's spelling.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cachedit/parallel.h"

namespace cachedit::pipelines {

/// Throws ConfigError naming an unknown key, a value of the wrong kind, or a setting that only
/// Python can have.
ParallelismConfig read_parallelism(const nlohmann::json& object, const std::string& where);

/// The section's lines, or nothing for defaults; reads back as `config`.
std::string parallelism_text(const ParallelismConfig& config);

}  // namespace cachedit::pipelines
