// The quantize_config section of a configuration file, in cache-dit's spelling.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cachedit/quantize.h"

namespace cachedit::pipelines {

/// Throws ConfigError naming an unknown key, a value of the wrong kind or a setting that only
/// Python can have, and as check_quantize_config().
QuantizeConfig read_quantize_config(const nlohmann::json& object, const std::string& where);

/// The section's lines, or nothing without a configuration; reads back as `config`.
std::string quantize_text(const std::optional<QuantizeConfig>& config);

}  // namespace cachedit::pipelines
