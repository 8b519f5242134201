// Logging for the rooms. Texts follow the errors' form: "[where] what happened".
#pragma once

#include <string>

#include "cachedit/log.h"

namespace cachedit {

/// The level that a value of CACHEDIT_LOG_LEVEL names; kWarning for an empty one. Throws
/// ConfigError listing the names for any other.
LogLevel parse_log_level(const std::string& name);

void log_debug(const std::string& text);
void log_info(const std::string& text);
void log_warning(const std::string& text);

}  // namespace cachedit
