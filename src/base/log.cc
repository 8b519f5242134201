#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <map>

#include "base/environment.h"
#include "cachedit/error.h"

namespace cachedit {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

spdlog::logger& logger() {
  // spdlog's loggers are thread-safe; this one is made at the first message.
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("cachedit",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("cachedit %l: %v");
    made->set_level(to_spdlog(parse_log_level(environment().log_level)));
    return made;
  }();
  return *instance;
}

}  // namespace

LogLevel parse_log_level(const std::string& name) {
  static const std::map<std::string, LogLevel> names = {{"debug", LogLevel::kDebug},
                                                        {"info", LogLevel::kInfo},
                                                        {"warning", LogLevel::kWarning},
                                                        {"error", LogLevel::kError},
                                                        {"off", LogLevel::kOff}};
  if (name.empty()) return LogLevel::kWarning;
  const auto found = names.find(name);
  if (found == names.end()) {
    throw ConfigError("[CACHEDIT_LOG_LEVEL] unknown level: got '" + name +
                      "'; use debug, info, warning, error or off");
  }
  return found->second;
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }
void log_debug(const std::string& text) { logger().debug("{}", text); }
void log_info(const std::string& text) { logger().info("{}", text); }
void log_warning(const std::string& text) { logger().warn("{}", text); }

}  // namespace cachedit
