// The command line as one of several ranks: which of them speaks, and how they fail together.
#pragma once

#include <optional>
#include <string>

#include "cachedit/parallel.h"

namespace cachedit::cli {

class Ranks {
 public:
  /// The ranks that a launcher started, met at the first call.
  const World& world();

  /// Whether this rank prints and writes files: rank 0, and a process alone.
  bool speaks();

  /// Tells the other ranks that this one fails with `text`, and returns what this rank should
  /// print: rank 0 the text, or, where only others failed or failed otherwise, what each of them
  /// said; the others nothing, unless rank 0 is not there to print.
  std::string report_failure(const std::string& text);

 private:
  std::optional<World> world_;
};

}  // namespace cachedit::cli
