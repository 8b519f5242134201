#include "pipelines/tune_masks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace cachedit::pipelines {

std::vector<int64_t> bent_mask(int64_t steps, int64_t computed, double bend, double reach) {
  std::vector<int64_t> mask(static_cast<size_t>(steps), 0);
  mask[0] = 1;
  const double last = std::min(reach * static_cast<double>(steps), static_cast<double>(steps - 1));
  int64_t previous = 0;
  for (int64_t i = 1; i < computed; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(computed - 1);
    auto step = static_cast<int64_t>(std::lround(last * std::pow(part, bend)));
    step = std::min(std::max(step, previous + 1), steps - 1);
    mask[static_cast<size_t>(step)] = 1;
    previous = step;
  }
  return mask;
}

std::vector<std::vector<int64_t>> neighbours(const std::vector<int64_t>& mask) {
  std::vector<std::vector<int64_t>> all;
  const auto steps = static_cast<int64_t>(mask.size());
  for (int64_t from = 1; from < steps; ++from) {
    if (mask[static_cast<size_t>(from)] == 0) continue;
    for (const int64_t by : {-1, 1, -2, 2}) {
      const int64_t to = from + by;
      if (to < 1 || to >= steps || mask[static_cast<size_t>(to)] == 1) continue;
      std::vector<int64_t> moved = mask;
      std::swap(moved[static_cast<size_t>(from)], moved[static_cast<size_t>(to)]);
      all.push_back(std::move(moved));
    }
  }
  return all;
}

int64_t computed_steps(const std::vector<int64_t>& mask) {
  return std::count(mask.begin(), mask.end(), 1);
}

}  // namespace cachedit::pipelines
