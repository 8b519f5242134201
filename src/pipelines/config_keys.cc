#include "pipelines/config_keys.h"

#include <algorithm>

#include "base/fail.h"
#include "base/nearest_name.h"
#include "io/json_text.h"

namespace cachedit::pipelines {

void check_keys(const nlohmann::json& object, const std::vector<std::string>& known,
                const std::string& where) {
  if (!object.is_object()) {
    fail<ConfigError>(where, "must hold keys and values: got ", io::show_json(object));
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail<ConfigError>(where, "unknown key: got '", key, "'; did you mean '",
                      nearest_name(key, known), "'?");
  }
}

}  // namespace cachedit::pipelines
