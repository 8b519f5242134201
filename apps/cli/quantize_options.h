// The options that quantize linear layers, under cache-dit's names.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/quantize.h"

namespace cachedit::cli {

class QuantizeOptions {
 public:
  /// Registers the options of `cachedit generate`; `this` outlives the parse.
  void add_to(CLI::App& command);
  /// Those of `cachedit quantize`.
  void add_to_quantize(CLI::App& command);

  /// What the options ask for, over `base` (of a file); none: nothing. Throws InputError for an
  /// option without effect and for unknown types, listing the known ones; UnsupportedError for
  /// types of later versions. `where` names the command.
  std::optional<QuantizeConfig> make(std::optional<QuantizeConfig> base,
                                     const std::string& where) const;

 private:
  void add_text(CLI::App& command);
  void add_common(CLI::App& command, const std::string& group_size_names);
  void edit(QuantizeConfig& config) const;

  bool transformer_ = false;
  bool text_ = false;
  std::optional<std::string> type_;
  std::optional<std::string> text_type_;
  std::optional<std::vector<std::string>> exclude_layers_;
  std::optional<int64_t> group_size_;
  bool whole_ = false;
};

}  // namespace cachedit::cli
