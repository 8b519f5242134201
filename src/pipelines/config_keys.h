// The keys that a section of a configuration file may have.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cachedit::pipelines {

/// Throws ConfigError unless `object` holds keys and values, and for a key that is not known, with
/// the known one that it probably meant. `where` names file and section.
void check_keys(const nlohmann::json& object, const std::vector<std::string>& known,
                const std::string& where);

}  // namespace cachedit::pipelines
