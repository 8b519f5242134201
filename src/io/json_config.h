// Typed reading of diffusers' and transformers' JSON configs, with a strict end: a key that nobody
// asked for may change the maths, so it is refused.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::io {

/// Parses a JSON file of at most 64 MiB. Throws IoError if it cannot be read, ConfigError (with the
/// path and the position) if it is not JSON or nests deeper than 100 levels.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// The same for text in memory; `where` names it in errors.
nlohmann::json parse_json(std::string_view text, const std::string& where);

class JsonConfig {
 public:
  /// `where` names the file in error texts. Throws ConfigError if `json` is not an object.
  JsonConfig(nlohmann::json json, std::string where);
  static JsonConfig read(const std::filesystem::path& path);

  /// The value of a key that must be there. T is bool, int64_t, double, std::string,
  /// std::vector<int64_t>, std::vector<double> or std::vector<std::string>.
  /// Integers are accepted as double; floats that are whole are accepted as int64_t; nothing else
  /// converts. Throws ConfigError naming file, key, expected type and the value found.
  template <class T>
  T get(std::string_view key);
  /// The same for an optional key: `fallback` when it is absent or null.
  template <class T>
  T get_or(std::string_view key, T fallback);
  /// The same, std::nullopt when it is absent or null.
  template <class T>
  std::optional<T> find(std::string_view key);

  /// The value under `key`, which must be an object, as a config of its own.
  std::optional<JsonConfig> find_object(std::string_view key);

  /// The class that wrote the config: "_class_name", or the only entry of "architectures".
  std::optional<std::string> class_name();
  /// Throws ConfigError unless class_name() is one of `accepted`.
  void require_class(std::initializer_list<std::string_view> accepted);

  /// Marks keys that do not change the result (training settings and the like).
  void ignore(std::initializer_list<std::string_view> keys);
  /// The key may be absent, null or `value`; throws ConfigError with `reason` otherwise.
  template <class T>
  void expect(std::string_view key, const T& value, std::string_view reason);

  /// Ends the reading. Throws ConfigError listing the keys (and values) that nobody read or
  /// ignored, other than those that start with '_' and those whose value is null, false, "" or [].
  void finish() const;

  bool contains(std::string_view key) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json* use(std::string_view key);

  nlohmann::json json_;
  std::string where_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace cachedit::io
