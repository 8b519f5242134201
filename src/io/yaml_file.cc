#include "io/yaml_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "base/fail.h"
#include "io/json_text.h"

namespace cachedit::io {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kMaxBytes = 1 << 20;

/// YAML 1.1's forms of numbers that anybody writes; its octal and base-60 ones stay text.
json resolve_number(const std::string& text) {
  static const std::regex integer("[-+]?(0|[1-9][0-9]*)");
  static const std::regex real("[-+]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?");
  const char* begin = text.data() + (text.front() == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  int64_t whole = 0;
  if (std::regex_match(text, integer) && std::from_chars(begin, end, whole).ec == std::errc()) {
    return whole;
  }
  const bool octal = text.size() > 1 && text.find_first_not_of("+-0123456789") == std::string::npos;
  double value = 0;
  if (!octal && std::regex_match(text, real) &&
      std::from_chars(begin, end, value).ec == std::errc())
    return value;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return std::nan("");
  return text;
}

json resolve_plain(const std::string& text) {
  static const std::set<std::string> nulls = {"", "~", "null", "Null", "NULL"};
  static const std::set<std::string> yes = {"yes",  "Yes", "YES", "true", "True",
                                            "TRUE", "on",  "On",  "ON"};
  static const std::set<std::string> no = {"no",    "No",  "NO",  "false", "False",
                                           "FALSE", "off", "Off", "OFF"};
  constexpr size_t kLongestNumber = 64;
  if (nulls.count(text) != 0) return nullptr;
  if (yes.count(text) != 0) return true;
  if (no.count(text) != 0) return false;
  return text.size() > kLongestNumber ? json(text) : resolve_number(text);
}

/// Builds the value from the parser's events.
class Builder final : public YAML::EventHandler {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  json take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(mark, nullptr, "");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fault(mark, "aliases are not read; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    const bool plain = is_plain(tag);  // "!" marks quoted text
    if (!plain && tag != "!") fault(mark, "tags are not read: got '" + tag + "'");
    add(mark, plain ? resolve_plain(value) : json(value), value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    if (!is_plain(tag)) fault(mark, "tags are not read: got '" + tag + "'");
    open(mark, json::array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    if (!is_plain(tag)) fault(mark, "tags are not read: got '" + tag + "'");
    open(mark, json::object());
  }
  void OnMapEnd() override { close(); }

  [[noreturn]] void fault(const YAML::Mark& mark, const std::string& what) const {
    fail<ConfigError>(where_, "line ", mark.line + 1, ", column ", mark.column + 1, ": ", what);
  }

 private:
  struct Level {
    json value;
    std::string key;
    bool has_key = false;
  };

  static bool is_plain(const std::string& tag) { return tag == "?" || tag.empty(); }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) fault(mark, "anchors are not read; write the value out");
  }

  void open(const YAML::Mark& mark, json value) {
    if (levels_.size() >= kMaxJsonDepth) fault(mark, "nested deeper than 100 levels");
    if (!levels_.empty() && levels_.back().value.is_object() && !levels_.back().has_key) {
      fault(mark, "a key must be text");
    }
    levels_.push_back({.value = std::move(value), .key = {}, .has_key = false});
  }

  void close() {
    json value = std::move(levels_.back().value);
    levels_.pop_back();
    put(std::move(value));
  }

  /// A scalar: a key, where the open map waits for one.
  void add(const YAML::Mark& mark, json value, const std::string& text) {
    if (!levels_.empty() && levels_.back().value.is_object() && !levels_.back().has_key) {
      Level& level = levels_.back();
      if (level.value.contains(text)) fault(mark, "the key '" + text + "' stands here twice");
      level.key = text;
      level.has_key = true;
      return;
    }
    put(std::move(value));
  }

  void put(json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
    } else if (levels_.back().value.is_object()) {
      levels_.back().value[levels_.back().key] = std::move(value);
      levels_.back().has_key = false;
    } else {
      levels_.back().value.push_back(std::move(value));
    }
  }

  const std::string& where_;
  json root_;
  std::vector<Level> levels_;
};

/// What is no text at all must not come out as an odd key.
void check_text(std::string_view text, const std::string& where) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 && c != '\t' && c != '\n' && c != '\r') {
      fail<ConfigError>(where, "must be text: got the control character ", int{byte});
    }
  }
  try {
    json(std::string(text)).dump();
  } catch (const json::type_error&) {
    fail<ConfigError>(where, "must be UTF-8 text: got bytes that are not");
  }
}

}  // namespace

nlohmann::json parse_yaml(std::string_view text, const std::string& where) {
  check_text(text, where);
  std::istringstream stream{std::string(text)};
  Builder builder(where);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return nullptr;
    json value = builder.take();
    if (parser.HandleNextDocument(builder)) {
      fail<ConfigError>(where, "must hold one document: got several");
    }
    return value;
  } catch (const YAML::Exception& error) {
    builder.fault(error.mark, error.msg);
  }
}

nlohmann::json read_yaml_file(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) fail<IoError>(where, "cannot be read: ", error.message());
  if (size > kMaxBytes) {
    fail<ConfigError>(where, "a config may hold 1 MiB: got ", size, " bytes");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(size), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    fail<IoError>(where, "cannot be read");
  }
  return parse_yaml(text, where);
}

std::string yaml_number(double value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end);
  if (text.find('.') != std::string::npos) return text;
  const size_t exponent = std::min(text.find('e'), text.size());
  return text.insert(exponent, ".0");
}

std::string yaml_text(std::string_view text) {
  // JSON's strings are YAML's double-quoted ones.
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cachedit::io
