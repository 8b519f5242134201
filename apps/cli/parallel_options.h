// Command line options of parallel runs, in upstream's spelling.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cachedit/parallel.h"

namespace cachedit::cli {

class ParallelOptions {
 public:
  void add_to(CLI::App& command);

  /// `base` (of a file) with what the options say, for that many ranks. Throws InputError where an
  /// option has no effect or the sizes do not fit.
  ParallelismConfig make(ParallelismConfig base, int64_t ranks) const;

 private:
  void add_size(CLI::App& command, const char* name, const char* help,
                std::optional<int64_t> ParallelismConfig::*size);
  void add_switch(CLI::App& command, const char* name, const char* help,
                  std::function<void(ParallelismConfig&)> apply);

  std::string type_;
  std::vector<std::function<void(ParallelismConfig&)>> edits_;
};

}  // namespace cachedit::cli
