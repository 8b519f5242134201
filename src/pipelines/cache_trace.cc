#include "pipelines/cache_trace.h"

#include <optional>

namespace cachedit::pipelines {
namespace {

/// A growing list, or one that was emptied and grew again: what is new in it.
template <class T>
bool grew(const std::vector<T>& before, const std::vector<T>& now) {
  return !now.empty() && now.size() != before.size();
}

/// Negative values stand for differences that were not measured.
std::optional<double> mean_of_measured(const std::vector<double>& diffs) {
  double sum = 0;
  int64_t count = 0;
  for (const double diff : diffs) {
    if (diff < 0) continue;
    sum += diff;
    ++count;
  }
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

CacheStep step_between(const CacheBranchStats& before, const CacheBranchStats& now) {
  CacheStep step;
  step.cached = now.accumulated_cached_steps > before.accumulated_cached_steps;
  if (grew(before.pruned_blocks, now.pruned_blocks)) {
    step.cached = now.pruned_blocks.back() != 0;
  }
  if (grew(before.residual_diffs, now.residual_diffs)) {
    step.diff = mean_of_measured(now.residual_diffs.back().second);
  }
  return step;
}

}  // namespace

void CacheTracer::note(const std::vector<CacheStats>& now) {
  before_.resize(now.size());
  traces_.resize(now.size());
  for (size_t i = 0; i < now.size(); ++i) {
    traces_[i].conditional.push_back(step_between(before_[i].conditional, now[i].conditional));
    traces_[i].unconditional.push_back(
        step_between(before_[i].unconditional, now[i].unconditional));
  }
  before_ = now;
}

}  // namespace cachedit::pipelines
