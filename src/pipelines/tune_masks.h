// Static masks that the tuner tries: computed steps dense at the start, sparse later.
#pragma once

#include <cstdint>
#include <vector>

namespace cachedit::pipelines {

/// A mask of `steps` steps with `computed` of them computed: step i * (last / (computed - 1)) bent
/// by the power `bend` (1: even), the first being 0 and the last `reach` of the way to the end.
std::vector<int64_t> bent_mask(int64_t steps, int64_t computed, double bend, double reach);

/// The masks that differ from `mask` by one computed step moved by one or two, step 0 staying.
std::vector<std::vector<int64_t>> neighbours(const std::vector<int64_t>& mask);

int64_t computed_steps(const std::vector<int64_t>& mask);

}  // namespace cachedit::pipelines
