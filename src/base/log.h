// Logging for the rooms. Texts follow the errors' form: "[where] what happened".
#pragma once

#include <string>

#include "cachedit/log.h"

namespace cachedit {

void log_debug(const std::string& text);
void log_info(const std::string& text);
void log_warning(const std::string& text);

}  // namespace cachedit
