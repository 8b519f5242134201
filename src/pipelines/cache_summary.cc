// The texts of summary() and brief_summary().
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "cachedit/enable_cache.h"

namespace cachedit {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  const int size = std::snprintf(nullptr, 0, pattern, values...);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), pattern, values...);
  text.pop_back();
  return text;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

/// As numpy's percentile(): linear between the neighbours. `sorted` is not empty.
double percentile(const std::vector<double>& sorted, double percent) {
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

struct Diffs {
  std::vector<double> sorted;  ///< the measured ones
  int64_t not_numbers = 0;
};

Diffs collect(const CacheBranchStats& branch) {
  Diffs diffs;
  for (const auto& [step, values] : branch.residual_diffs) {
    for (const double value : values) {
      if (std::isnan(value)) {
        ++diffs.not_numbers;
      } else if (value >= 0) {  // below: nothing was measured
        diffs.sorted.push_back(value);
      }
    }
  }
  std::sort(diffs.sorted.begin(), diffs.sorted.end());
  return diffs;
}

std::string table_row(const char* name, const CacheBranchStats& branch, const Diffs& diffs) {
  const int64_t pruned = sum(branch.pruned_blocks);
  const std::string count =
      branch.actual_blocks.empty()
          ? std::to_string(branch.accumulated_cached_steps)
          : std::to_string(pruned) + "/" + std::to_string(sum(branch.actual_blocks));
  std::string row = format("| %-13s | %11s |", name, count.c_str());
  for (const double percent : {0.0, 25.0, 50.0, 75.0, 95.0, 100.0}) {
    row +=
        diffs.sorted.empty() ? "     - |" : format(" %5.3f |", percentile(diffs.sorted, percent));
  }
  return row + "\n";
}

/// Eighths of the largest difference; "?" for NaN, " " where nothing was measured.
std::string bar(const CacheStep& step, double largest) {
  static const char* const kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (!step.diff) return " ";
  if (std::isnan(*step.diff)) return "?";
  const double part = largest > 0 ? *step.diff / largest : 0;
  return kBars[std::clamp(static_cast<int>(part * 8), 0, 7)];
}

double largest_diff(const std::vector<CacheStep>& steps) {
  double largest = 0;
  for (const CacheStep& step : steps) {
    if (step.diff && *step.diff > largest) largest = *step.diff;
  }
  return largest;
}

/// Rows of at most 50 steps: numbers, "#" computed or "." cached, differences as bars.
std::string strip(const std::vector<CacheStep>& steps) {
  constexpr size_t kRow = 50;
  const double largest = largest_diff(steps);
  std::string text;
  for (size_t begin = 0; begin < steps.size(); begin += kRow) {
    const size_t end = std::min(begin + kRow, steps.size());
    std::string numbers, marks, bars;
    for (size_t i = begin; i < end; ++i) {
      if (i % 10 == 0) numbers += format("%-10zu", i);
      marks += steps[i].cached ? "." : "#";
      bars += bar(steps[i], largest);
    }
    numbers.erase(numbers.find_last_not_of(' ') + 1);
    text += "  step  " + numbers + "\n        " + marks + "\n";
    if (largest > 0) {
      text +=
          "  diff  " + bars + (end == steps.size() ? format("  (█: %.3f)", largest) : "") + "\n";
    }
  }
  return text;
}

std::string context_text(const CacheStats& stats, const CacheTrace& trace) {
  const bool prunes = !stats.conditional.actual_blocks.empty();
  const bool two_branches = stats.transformer_executed_steps > stats.executed_steps;
  std::string text = stats.name + ": " + stats.config + "\n";
  text += format("  %lld steps, %lld forward passes; buffers of at most %.2f MiB\n",
                 static_cast<long long>(stats.executed_steps),
                 static_cast<long long>(stats.transformer_executed_steps),
                 static_cast<double>(stats.peak_buffer_bytes) / (1 << 20));
  text += format("| branch        | %11s |   min |   P25 |   P50 |   P75 |   P95 |   max |\n",
                 prunes ? "pruned" : "cached");
  text += "|---------------|-------------|-------|-------|-------|-------|-------|-------|\n";
  const Diffs diffs = collect(stats.conditional);
  const Diffs cfg_diffs = collect(stats.unconditional);
  text += table_row("conditional", stats.conditional, diffs);
  if (two_branches) text += table_row("unconditional", stats.unconditional, cfg_diffs);
  if (two_branches) text += "  conditional\n";
  text += strip(trace.conditional);
  if (two_branches) text += "  unconditional\n" + strip(trace.unconditional);
  if (const int64_t count = diffs.not_numbers + cfg_diffs.not_numbers; count > 0) {
    text += format(
        "  %lld differences are NaN, and no step with such a one was cached: the first "
        "blocks\n  changed nothing, or their states are not finite\n",
        static_cast<long long>(count));
  }
  return text;
}

bool reused(const GenerateResult& result, size_t step) {
  const auto in = [&](const std::vector<CacheStep>& steps) {
    return step < steps.size() && steps[step].cached;
  };
  return std::any_of(
      result.cache_traces.begin(), result.cache_traces.end(),
      [&](const CacheTrace& trace) { return in(trace.conditional) || in(trace.unconditional); });
}

/// Steps that reused something, against the median of the others.
std::string time_text(const GenerateResult& result) {
  std::vector<double> computed;
  double cached = 0;
  size_t count = 0;
  for (size_t i = 0; i < result.step_seconds.size(); ++i) {
    if (reused(result, i)) {
      cached += result.step_seconds[i];
      ++count;
    } else {
      computed.push_back(result.step_seconds[i]);
    }
  }
  if (count == 0) return "time saved: none, every step was computed\n";
  if (computed.empty()) return "time saved: unknown, no step was computed whole\n";
  std::sort(computed.begin(), computed.end());
  const double full = percentile(computed, 50);
  const double took = std::accumulate(result.step_seconds.begin(), result.step_seconds.end(), 0.0);
  const double saved = static_cast<double>(count) * full - cached;
  return format(
      "time saved: %.3f s: %zu cached steps took %.2f ms each, a computed one takes "
      "%.2f ms (%.2fx)\n",
      saved, count, 1e3 * cached / static_cast<double>(count), 1e3 * full, (took + saved) / took);
}

std::string brief(const CacheStats& stats) {
  std::string text = stats.config;
  if (const int64_t blocks = sum(stats.conditional.actual_blocks); blocks > 0) {
    const double part =
        static_cast<double>(sum(stats.conditional.pruned_blocks)) / static_cast<double>(blocks);
    std::string percent = format("%.2f", 100 * part);
    if (percent.ends_with("0")) percent.pop_back();  // as Python prints a rounded number
    text.insert(text.rfind('_'), "_P" + percent);
  }
  if (const int64_t cached = stats.conditional.accumulated_cached_steps; cached > 0) {
    text += "_S" + std::to_string(cached);
  }
  return text;
}

}  // namespace

std::string summary(const GenerateResult& result) {
  std::string text;
  for (size_t i = 0; i < result.cache.size(); ++i) {
    text += context_text(result.cache[i],
                         i < result.cache_traces.size() ? result.cache_traces[i] : CacheTrace());
  }
  return text.empty() ? text : text + time_text(result);
}

std::string brief_summary(const GenerateResult& result) {
  std::string text;
  for (const CacheStats& stats : result.cache) {
    if (result.cache.size() > 1) text += (text.empty() ? "" : "; ") + stats.name + " ";
    text += brief(stats);
  }
  return text;
}

}  // namespace cachedit
