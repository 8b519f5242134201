// YAML configs as JSON values, so that JsonConfig reads both. Plain scalars become what PyYAML's
// safe_load makes of them, since cache-dit's files are written for it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace cachedit::io {

/// Parses a YAML file of at most 1 MiB with one document. Throws IoError if it cannot be read,
/// ConfigError naming file, line and column for anything that is not YAML, a key twice, anchors,
/// aliases and tags, or nesting deeper than 100 levels.
nlohmann::json read_yaml_file(const std::filesystem::path& path);

/// The same for text in memory; `where` names it in errors.
nlohmann::json parse_yaml(std::string_view text, const std::string& where);

/// A number as YAML 1.1 writes it: "0.08", "1.0e-08" (which PyYAML would read as text without the
/// point). `value` is finite.
std::string yaml_number(double value);

/// Text in double quotes, with escapes. UTF-8 is kept.
std::string yaml_text(std::string_view text);

}  // namespace cachedit::io
