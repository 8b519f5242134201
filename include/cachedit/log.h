// cachedit logs to stderr. The level comes from CACHEDIT_LOG_LEVEL and can be changed here.
#pragma once

#include "cachedit/export.h"

namespace cachedit {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Drops every message below `level` from now on. Thread-safe. The start value is that of
/// CACHEDIT_LOG_LEVEL (debug, info, warning, error, off), or kWarning.
CACHEDIT_API void set_log_level(LogLevel level);

}  // namespace cachedit
