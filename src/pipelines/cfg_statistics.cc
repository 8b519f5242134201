#include "pipelines/cfg_statistics.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "comm/collectives.h"

namespace cachedit::pipelines {
namespace {

using nlohmann::json;

/// JSON has no NaN: it travels as null.
double number(const json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

json to_json(const CacheBranchStats& branch) {
  json diffs = json::array();
  for (const auto& [step, values] : branch.residual_diffs) diffs.push_back({step, values});
  return {branch.cached_steps, diffs, branch.pruned_blocks, branch.actual_blocks,
          branch.accumulated_cached_steps};
}

CacheBranchStats branch_stats(const json& j) {
  CacheBranchStats branch;
  branch.cached_steps = j[0].get<std::vector<int64_t>>();
  for (const json& diff : j[1]) {
    std::vector<double> values;
    for (const json& value : diff[1]) values.push_back(number(value));
    branch.residual_diffs.emplace_back(diff[0].get<int64_t>(), std::move(values));
  }
  branch.pruned_blocks = j[2].get<std::vector<int64_t>>();
  branch.actual_blocks = j[3].get<std::vector<int64_t>>();
  branch.accumulated_cached_steps = j[4].get<int64_t>();
  return branch;
}

json to_json(const std::vector<CacheStep>& steps) {
  json list = json::array();
  for (const CacheStep& step : steps) {
    list.push_back({step.cached, step.diff.has_value(), step.diff.value_or(0)});
  }
  return list;
}

std::vector<CacheStep> cache_steps(const json& j) {
  std::vector<CacheStep> steps;
  for (const json& step : j) {
    steps.push_back({.cached = step[0].get<bool>()});
    if (step[1].get<bool>()) steps.back().diff = number(step[2]);
  }
  return steps;
}

}  // namespace

void merge_guidance_branches(GenerateResult& result, comm::Communicator& cfg) {
  json own = json::array();
  for (size_t i = 0; i < result.cache.size(); ++i) {
    own.push_back({to_json(result.cache[i].conditional),
                   to_json(result.cache_traces[i].conditional),
                   result.cache[i].transformer_executed_steps, result.cache[i].peak_buffer_bytes});
  }
  const std::vector<std::string> texts = comm::all_gather_text(cfg, own.dump());
  const json conditional = json::parse(texts[0]), unconditional = json::parse(texts[1]);
  for (size_t i = 0; i < result.cache.size(); ++i) {
    CacheStats& stats = result.cache[i];
    stats.conditional = branch_stats(conditional[i][0]);
    stats.unconditional = branch_stats(unconditional[i][0]);
    result.cache_traces[i].conditional = cache_steps(conditional[i][1]);
    result.cache_traces[i].unconditional = cache_steps(unconditional[i][1]);
    stats.transformer_executed_steps =
        conditional[i][2].get<int64_t>() + unconditional[i][2].get<int64_t>();
    stats.peak_buffer_bytes =
        std::max(conditional[i][3].get<int64_t>(), unconditional[i][3].get<int64_t>());
  }
}

}  // namespace cachedit::pipelines
