#include "io/json_config.h"

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/fail.h"
#include "io/json_text.h"

namespace cachedit::io {
namespace {

using Json = nlohmann::json;

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

std::string read_text(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    fail<IoError>(where, "the file cannot be read: got ", error ? error.message() : "no such file",
                  "; check the path");
  }
  if (!std::filesystem::is_regular_file(status)) {
    fail<IoError>(where, "a JSON file is needed: got something that is not a file");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<IoError>(where, "the file cannot be read: got ", std::strerror(errno));
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail<IoError>(where, "the file cannot be read: got ", error.message());
  if (size > kMaxFileBytes) {
    fail<ConfigError>(where, "a JSON file has at most 64 MiB: got ", size, " bytes");
  }
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (in.bad()) fail<IoError>(where, "the file cannot be read: got ", std::strerror(errno));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

// read_as() gives a value if the JSON has that type, by the rules of JsonConfig::get.

bool read_as(const Json& json, bool& value) {
  if (!json.is_boolean()) return false;
  value = json.get<bool>();
  return true;
}

bool read_as(const Json& json, int64_t& value) {
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  if (json.is_number_integer()) {
    value = json.get<int64_t>();
    return true;
  }
  if (!json.is_number_float()) return false;
  const double number = json.get<double>();
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (std::trunc(number) != number || number < -kLimit || number >= kLimit) return false;
  value = static_cast<int64_t>(number);
  return true;
}

bool read_as(const Json& json, double& value) {
  if (!json.is_number()) return false;
  value = json.get<double>();
  return true;
}

bool read_as(const Json& json, std::string& value) {
  if (!json.is_string()) return false;
  value = json.get<std::string>();
  return true;
}

template <class T>
bool read_as(const Json& json, std::vector<T>& values) {
  if (!json.is_array()) return false;
  values.clear();
  for (const Json& item : json) {
    T value{};
    if (!read_as(item, value)) return false;
    values.push_back(std::move(value));
  }
  return true;
}

template <class T>
constexpr const char* kTypeName = nullptr;
template <>
constexpr const char* kTypeName<bool> = "true or false";
template <>
constexpr const char* kTypeName<int64_t> = "an integer";
template <>
constexpr const char* kTypeName<double> = "a number";
template <>
constexpr const char* kTypeName<std::string> = "a string";
template <>
constexpr const char* kTypeName<std::vector<int64_t>> = "a list of integers";
template <>
constexpr const char* kTypeName<std::vector<double>> = "a list of numbers";
template <>
constexpr const char* kTypeName<std::vector<std::string>> = "a list of strings";

bool is_empty_setting(const Json& value) {
  return value.is_null() || value == false || value == "" || (value.is_array() && value.empty());
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  JsonText parsed = parse_json_text(text, DuplicateKeys::kLastWins);
  if (!parsed.fault.empty()) {
    fail<ConfigError>(where, "the file must be JSON: ", parsed.fault, "; restore the file");
  }
  return std::move(parsed.value);
}

Json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

JsonConfig::JsonConfig(Json json, std::string where)
    : json_(std::move(json)), where_(std::move(where)) {
  if (!json_.is_object()) {
    fail<ConfigError>(where_, "a config is a JSON object: got ", show_json(json_));
  }
}

JsonConfig JsonConfig::read(const std::filesystem::path& path) {
  return JsonConfig(read_json_file(path), path.string());
}

const Json* JsonConfig::use(std::string_view key) {
  const auto found = json_.find(key);
  if (found == json_.end()) return nullptr;
  used_.emplace(key);
  return &*found;
}

template <class T>
std::optional<T> JsonConfig::find(std::string_view key) {
  const Json* json = use(key);
  if (json == nullptr || json->is_null()) return std::nullopt;
  T value{};
  if (!read_as(*json, value)) {
    fail<ConfigError>(where_, "'", key, "' must be ", kTypeName<T>, ": got ", show_json(*json));
  }
  return value;
}

template <class T>
T JsonConfig::get(std::string_view key) {
  std::optional<T> value = find<T>(key);
  if (!value) {
    fail<ConfigError>(where_, "'", key, "' must be ", kTypeName<T>, ": got ",
                      contains(key) ? "null" : "nothing (the key is missing)");
  }
  return *std::move(value);
}

template <class T>
T JsonConfig::get_or(std::string_view key, T fallback) {
  return find<T>(key).value_or(std::move(fallback));
}

template <class T>
void JsonConfig::expect(std::string_view key, const T& value, std::string_view reason) {
  const Json* json = use(key);
  if (json == nullptr || json->is_null()) return;
  T found{};
  if (read_as(*json, found) && found == value) return;
  fail<ConfigError>(where_, "'", key, "' must be ", show_json(Json(value)), ": got ",
                    show_json(*json), "; ", reason);
}

std::optional<JsonConfig> JsonConfig::find_object(std::string_view key) {
  const Json* json = use(key);
  if (json == nullptr || json->is_null()) return std::nullopt;
  if (!json->is_object()) {
    fail<ConfigError>(where_, "'", key, "' must be an object: got ", show_json(*json));
  }
  return JsonConfig(*json, c10::str(where_, ": ", key));
}

std::optional<std::string> JsonConfig::class_name() {
  if (auto name = find<std::string>("_class_name")) return name;
  const auto names = find<std::vector<std::string>>("architectures");
  if (!names || names->size() != 1) return std::nullopt;
  return names->front();
}

void JsonConfig::require_class(std::initializer_list<std::string_view> accepted) {
  const std::optional<std::string> name = class_name();
  std::string list;
  for (const std::string_view candidate : accepted) {
    if (name && *name == candidate) return;
    list += c10::str(list.empty() ? "" : " or ", candidate);
  }
  fail<ConfigError>(where_, "the config must be that of ", list, ": got ",
                    name ? *name : "no single class name in '_class_name' or 'architectures'",
                    "; check that the folder holds the right component");
}

void JsonConfig::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) used_.emplace(key);
}

void JsonConfig::finish() const {
  std::string unread;
  for (const auto& [key, value] : json_.items()) {
    if (key.starts_with('_') || used_.contains(key) || is_empty_setting(value)) continue;
    unread += c10::str(unread.empty() ? "" : ", ", "'", key, "' = ", show_json(value));
  }
  if (unread.empty()) return;
  fail<ConfigError>(where_, "every key must be one that this version knows, since another one may ",
                    "change the result: got ", unread, "; remove it if it does not matter");
}

bool JsonConfig::contains(std::string_view key) const { return json_.contains(key); }

#define CACHEDIT_CONFIG_TYPE(...)                                                      \
  template __VA_ARGS__ JsonConfig::get<__VA_ARGS__>(std::string_view);                 \
  template __VA_ARGS__ JsonConfig::get_or<__VA_ARGS__>(std::string_view, __VA_ARGS__); \
  template std::optional<__VA_ARGS__> JsonConfig::find<__VA_ARGS__>(std::string_view); \
  template void JsonConfig::expect<__VA_ARGS__>(std::string_view, const __VA_ARGS__&,  \
                                                std::string_view);
CACHEDIT_CONFIG_TYPE(bool)
CACHEDIT_CONFIG_TYPE(int64_t)
CACHEDIT_CONFIG_TYPE(double)
CACHEDIT_CONFIG_TYPE(std::string)
CACHEDIT_CONFIG_TYPE(std::vector<int64_t>)
CACHEDIT_CONFIG_TYPE(std::vector<double>)
CACHEDIT_CONFIG_TYPE(std::vector<std::string>)
#undef CACHEDIT_CONFIG_TYPE

}  // namespace cachedit::io
