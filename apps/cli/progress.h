// Progress on stderr: a bar on a terminal, a line every few seconds elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "cachedit/pipeline.h"

namespace cachedit::cli {

class Progress {
 public:
  /// `label` stands before the bar, e.g. "[2/8]".
  Progress(bool quiet, std::string label);
  /// Erases an unfinished bar's line end, so that messages start on a line of their own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const StepProgress& step);

 private:
  bool quiet_;
  bool terminal_;
  bool open_line_ = false;
  std::string label_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_print_;
};

}  // namespace cachedit::cli
