// JSON from untrusted text: bounded nesting, no bytes that a lenient parser would skip, and, where
// asked for, no key twice. Faults come back as text, so that each reader throws its own error type.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace cachedit::io {

enum class DuplicateKeys {
  kLastWins,  ///< as Python's json module has it
  kRefuse,
};

struct JsonText {
  nlohmann::json value;
  std::string fault;  ///< empty when `value` is good; else what is wrong, with its position
};

inline constexpr int kMaxJsonDepth = 100;

/// Never throws for any content of `text` (short of std::bad_alloc).
JsonText parse_json_text(std::string_view text, DuplicateKeys duplicates);

/// One line for error texts, shortened where long.
std::string show_json(const nlohmann::json& value);

}  // namespace cachedit::io
