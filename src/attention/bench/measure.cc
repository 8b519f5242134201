#include "attention/bench/measure.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/cpu.h"

namespace cachedit::attention::bench {
namespace {

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// LibTorch reports to it what this thread allocates and frees while it is installed.
class AllocationMeter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, int64_t change, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, c10::Device /*device*/) override {
    held_ += change;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

}  // namespace

double measure_roof(kernels::RoofKind kind, kernels::CpuIsa isa) {
  constexpr int kRounds = 12;
  constexpr double kRoundSeconds = 0.05;
  const kernels::Parallel parallel = cpu_threads();
  int64_t iterations = 1000;
  double best = 0;
  for (int round = 0; round < kRounds;) {
    double operations = 0;
    const double seconds =
        seconds_of([&] { operations = kernels::run_roof(kind, iterations, parallel, isa); });
    if (seconds < kRoundSeconds / 2) {
      iterations *= 2;
      continue;
    }
    best = std::max(best, operations / seconds / 1e9);
    ++round;
  }
  return best;
}

Timing time_pairs(const std::function<void()>& subject, const std::function<void()>& yardstick,
                  int64_t repeats) {
  constexpr double kPatienceSeconds = 30;
  constexpr size_t kFewest = 3;
  std::vector<double> times, ratios;
  double spent = 0;
  for (int64_t i = 0; i < repeats && (spent < kPatienceSeconds || times.size() < kFewest); ++i) {
    const double yardstick_seconds = seconds_of(yardstick);
    const double subject_seconds = seconds_of(subject);
    spent += yardstick_seconds + subject_seconds;
    times.push_back(subject_seconds);
    ratios.push_back(yardstick_seconds / subject_seconds);
  }
  return {.ms = median(times) * 1e3, .ratio = median(ratios)};
}

size_t peak_allocation(const std::function<void()>& call) {
  const auto meter = std::make_shared<AllocationMeter>();
  const c10::DebugInfoGuard installed(c10::DebugInfoKind::PROFILER_STATE, meter);
  call();
  return static_cast<size_t>(meter->peak());
}

}  // namespace cachedit::attention::bench
