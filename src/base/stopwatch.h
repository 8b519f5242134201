// Wall-clock durations.
#pragma once

#include <chrono>

namespace cachedit {

class Stopwatch {
 public:
  /// Seconds since construction or the last restart().
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// Seconds since the last start, and starts again.
  double restart() {
    const double elapsed = seconds();
    start_ = std::chrono::steady_clock::now();
    return elapsed;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace cachedit
