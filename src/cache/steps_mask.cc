// Named and custom masks of computed steps, as cache-dit's steps_mask().
#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "base/fail.h"
#include "cachedit/cache_config.h"

namespace cachedit {
namespace {

constexpr const char* kWhere = "steps_mask";
/// Steps that the policies were made for.
constexpr int64_t kReferenceSteps = 28;

/// Lengths of alternating intervals: compute[0], cache[0], compute[1]...
struct Bins {
  std::vector<int64_t> compute;
  std::vector<int64_t> cache;

  int64_t total() const {
    return std::accumulate(compute.begin(), compute.end(), int64_t{0}) +
           std::accumulate(cache.begin(), cache.end(), int64_t{0});
  }
};

using Policies = std::map<std::string, Bins, std::less<>>;

Policies policies_for(int64_t steps) {
  if (steps < 8) {
    const Bins few = steps == 4 ? Bins{{2, 1}, {1}} : Bins{{3, 1}, {2}};
    return {{"slow", few}, {"medium", few}, {"fast", few}, {"ultra", few}};
  }
  if (steps == 8) {
    return {{"slow", {{5, 1, 1}, {1}}},
            {"medium", {{4, 1, 1}, {1, 1}}},
            {"fast", {{3, 1, 1}, {1, 2}}},
            {"ultra", {{2, 1, 1}, {2, 2}}}};
  }
  if (steps == 9) {
    return {{"slow", {{5, 2, 1}, {1}}},
            {"medium", {{5, 1, 1}, {1, 1}}},
            {"fast", {{4, 1, 1}, {1, 2}}},
            {"ultra", {{3, 1, 1}, {2, 2}}}};
  }
  if (steps < 16) {
    return {{"slow", {{4, 2, 2, 2, 1}, {1, 1, 1, 1}}},
            {"medium", {{4, 2, 1, 1, 1}, {1, 1, 2, 2}}},
            {"fast", {{3, 1, 1, 1, 1}, {1, 2, 2, 3}}},
            {"ultra", {{2, 1, 1, 1, 1}, {1, 2, 3, 3}}}};
  }
  return {{"slow", {{8, 3, 3, 2, 1, 1}, {1, 2, 2, 2, 3}}},
          {"medium", {{6, 2, 2, 2, 2, 1}, {1, 3, 3, 3, 3}}},
          {"fast", {{6, 1, 1, 1, 1, 1}, {1, 3, 4, 5, 4}}},
          {"ultra", {{4, 1, 1, 1, 1}, {2, 5, 6, 7}}}};
}

/// Lengthens every interval in turn, in proportion, until `steps` are covered.
void stretch(Bins& bins, int64_t steps) {
  const Bins original = bins;
  const double factor = static_cast<double>(steps) / kReferenceSteps * 0.5;
  const auto grow = [&](int64_t& bin, int64_t by) {
    bin += std::max<int64_t>(static_cast<int64_t>(static_cast<double>(by) * factor), 1);
    return bins.total() >= steps;
  };
  const size_t pairs = std::min(bins.compute.size(), bins.cache.size());
  while (bins.total() < steps) {
    bool enough = false;
    for (size_t i = 0; i < pairs && !enough; ++i) {
      enough = grow(bins.compute[i], original.compute[i]) || grow(bins.cache[i], original.cache[i]);
    }
    if (enough) return;
    ++bins.compute.back();
  }
}

/// Shortens the last intervals of both kinds in turn down to `steps`.
void truncate(Bins& bins, int64_t steps) {
  const auto shorten = [](std::vector<int64_t>& list) {
    if (!list.empty() && --list.back() == 0) list.pop_back();
  };
  while (bins.total() > steps) {
    shorten(bins.cache);
    if (bins.total() <= steps) return;
    shorten(bins.compute);
  }
}

std::vector<int64_t> mask_of(const Bins& bins, int64_t steps) {
  std::vector<int64_t> mask;
  for (size_t i = 0; i < std::max(bins.compute.size(), bins.cache.size()); ++i) {
    if (i < bins.compute.size()) mask.insert(mask.end(), static_cast<size_t>(bins.compute[i]), 1);
    if (i < bins.cache.size()) mask.insert(mask.end(), static_cast<size_t>(bins.cache[i]), 0);
  }
  mask.resize(static_cast<size_t>(steps));
  return mask;
}

}  // namespace

std::vector<int64_t> steps_mask(std::string_view mask_policy, int64_t total_steps) {
  const bool known = total_steps == 4 || total_steps == 6 || total_steps >= 8;
  if (!known) {
    fail<InputError>(kWhere, "named masks exist for 4, 6 and 8 or more steps: got ", total_steps,
                     "; give the mask as bits");
  }
  Policies policies = policies_for(total_steps);
  const auto found = policies.find(mask_policy);
  if (found == policies.end()) {
    fail<InputError>(kWhere, "unknown policy: got '", mask_policy,
                     "'; use slow, medium, fast or ultra");
  }
  Bins& bins = found->second;
  if (total_steps > kReferenceSteps) stretch(bins, total_steps);
  if (total_steps >= 8) truncate(bins, total_steps);
  std::vector<int64_t> mask = mask_of(bins, total_steps);
  mask.back() = 1;  // the last step is always computed
  return mask;
}

std::vector<int64_t> steps_mask(const std::vector<int64_t>& compute_bins,
                                const std::vector<int64_t>& cache_bins,
                                std::optional<int64_t> total_steps) {
  const Bins bins{compute_bins, cache_bins};
  for (const auto* list : {&bins.compute, &bins.cache}) {
    for (const int64_t bin : *list) {
      if (bin < 0) fail<InputError>(kWhere, "intervals must not be negative: got ", bin);
    }
  }
  const int64_t steps = total_steps.value_or(bins.total());
  if (steps < 0 || bins.total() < steps) {
    fail<InputError>(kWhere,
                     "compute and cache intervals must add up to at least total_steps: got ",
                     bins.total(), " for ", steps);
  }
  return mask_of(bins, steps);
}

}  // namespace cachedit
