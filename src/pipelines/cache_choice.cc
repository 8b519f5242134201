#include "pipelines/cache_choice.h"

#include <algorithm>

#include "base/fail.h"
#include "pipelines/linear_table_file.h"

namespace cachedit::pipelines {
namespace {

constexpr const char* kWhere = "enable_cache";

cache::RunnerOptions runner_options(const EnableCacheOptions& options) {
  cache::RunnerOptions all;
  if (const auto* prune = std::get_if<DBPruneConfig>(&options.cache_config)) {
    all.cache.type = CacheType::kDBPrune;
    all.cache.config = *prune;
  } else if (const auto* cache = std::get_if<DBCacheConfig>(&options.cache_config)) {
    static_cast<DBCacheConfig&>(all.cache.config) = *cache;
  }
  all.cache.calibrator = options.calibrator_config;
  all.separate_lists = options.separate_block_lists;
  all.modifiers = options.params_modifiers;
  return all;
}

/// The lists that get a context each, in the order of the modifiers.
std::vector<BlockCount> context_lists(const std::vector<BlockCount>& lists, bool separate) {
  std::vector<BlockCount> contexts;
  for (const BlockCount& list : lists) {
    if (list.blocks == 0) continue;
    if (separate || contexts.empty()) {
      contexts.push_back(list);
    } else {
      contexts.front().blocks += list.blocks;
    }
  }
  if (!separate && !contexts.empty()) contexts.front().name = lists.front().name;
  return contexts;
}

void check_lists(const cache::RunnerOptions& options, const std::vector<BlockCount>& lists) {
  const std::vector<BlockCount> contexts = context_lists(lists, options.separate_lists);
  if (options.modifiers.size() > contexts.size()) {
    fail<ConfigError>(kWhere, "params_modifiers must not be more than the block lists: got ",
                      options.modifiers.size(), " for ", contexts.size(),
                      options.separate_lists ? "" : "; separate_block_lists makes the lists count");
  }
  for (size_t i = 0; i < contexts.size(); ++i) {
    const cache::CacheOptions own = i < options.modifiers.size()
                                        ? cache::modified(options.cache, options.modifiers[i])
                                        : options.cache;
    cache::check_blocks(own, contexts[i].blocks, contexts[i].name);
  }
}

/// The file that the linear calibrators read; empty: there is none.
std::string linear_path(const cache::RunnerOptions& options) {
  std::string path;
  const auto add = [&](const std::optional<CalibratorConfig>& calibrator) {
    if (!calibrator || calibrator->calibrator_type != CalibratorType::kLinear) return;
    const std::string& own = calibrator->linear_coefficients_path;
    if (!path.empty() && own != path) {
      fail<ConfigError>(kWhere,
                        "linear_coefficients_path must be one file for all block lists: "
                        "got '",
                        path, "' and '", own, "'");
    }
    path = own;
  };
  add(options.cache.calibrator);
  for (const ParamsModifier& modifier : options.modifiers) add(modifier.calibrator_config);
  return path;
}

/// The mask of a named policy where the options hold none of their own.
void fill_mask(cache::RunnerOptions& options, const std::string& policy, int64_t steps) {
  if (policy.empty()) return;
  const std::vector<int64_t> mask = steps_mask(policy, steps);
  options.cache.config.steps_computation_mask = mask;
  for (ParamsModifier& modifier : options.modifiers) {
    if (modifier.cache_config && modifier.cache_config->steps_computation_mask.empty()) {
      modifier.cache_config->steps_computation_mask = mask;
    }
  }
}

/// Checks what does not depend on a request.
void check_options(const cache::RunnerOptions& options, const std::string& mask_policy,
                   const std::vector<BlockCount>& lists) {
  if (!mask_policy.empty() && !options.cache.config.steps_computation_mask.empty()) {
    fail<ConfigError>(kWhere,
                      "steps_mask_policy and steps_computation_mask exclude each other: give one");
  }
  constexpr int64_t kAnySteps = 28;  // every policy has a mask for them
  cache::RunnerOptions filled = options;
  fill_mask(filled, mask_policy, kAnySteps);
  const cache::CachedBlockRunner checks_ranges(filled);
  check_lists(filled, lists);
}

[[noreturn]] void refuse_one_branch(const char* why) {
  fail<UnsupportedError>("cache", "with cfg_size 2 each guidance branch decides for itself, but ",
                         why, "; change that, or leave cfg_size out");
}

/// Options for ranks that see every second pass of separate CFG only.
void make_one_branch(DBCacheConfig& config) {
  if (!config.enable_separate_cfg.value_or(true)) {
    refuse_one_branch("enable_separate_cfg: false makes the branches share one state");
  }
  if (!config.cfg_diff_compute_separate) {
    refuse_one_branch("cfg_diff_compute_separate: false takes the conditional branch's difference");
  }
  config.enable_separate_cfg = false;
  std::optional<int64_t>& hint = config.force_refresh_step_hint;
  if (!hint) return;
  if (*hint % 2 != 0) refuse_one_branch("an odd force_refresh_step_hint falls between them");
  *hint /= 2;  // it counts passes
}

}  // namespace

bool chooses_caching(const EnableCacheOptions& options) {
  const bool others_only = !options.attention_backend.empty() || options.quantize_config ||
                           options.parallelism_config != ParallelismConfig();
  const bool caching = !options.steps_mask_policy.empty() ||
                       !std::holds_alternative<std::monostate>(options.cache_config) ||
                       options.calibrator_config || !options.params_modifiers.empty() ||
                       options.separate_block_lists;
  return caching || !others_only;
}

void CacheChoice::choose(const EnableCacheOptions& options, const std::vector<BlockCount>& lists) {
  cache::RunnerOptions chosen = runner_options(options);
  check_options(chosen, options.steps_mask_policy, lists);
  const std::string path = linear_path(chosen);
  if (!path.empty()) {
    chosen.cache.linear = std::make_shared<const cache::LinearTable>(read_linear_table(path));
  }
  options_ = std::move(chosen);
  mask_policy_ = options.steps_mask_policy;
}

std::string CacheChoice::name() const {
  if (!options_) return {};
  const cache::CacheOptions& o = options_->cache;
  const std::string config = o.type == CacheType::kDBPrune
                                 ? strify(o.config)
                                 : strify(static_cast<const DBCacheConfig&>(o.config));
  return config + "_" + (o.calibrator ? strify(*o.calibrator) : "T0O0");
}

std::unique_ptr<cache::CachedBlockRunner> CacheChoice::make(int64_t steps,
                                                            const Passes& passes) const {
  if (!options_) return nullptr;
  if (options_->cache.linear && options_->cache.linear->num_inference_steps != steps) {
    fail<ConfigError>("linear calibrator", "the coefficients were fitted for ",
                      options_->cache.linear->num_inference_steps, " steps: got a request of ",
                      steps, "; ask for as many, or fit anew with `cachedit tune`");
  }
  cache::RunnerOptions own = *options_;
  fill_mask(own, mask_policy_, steps);
  own.group = passes.group;
  const auto fill = [&](DBCacheConfig& config) {
    if (passes.separate_cfg && !config.enable_separate_cfg) config.enable_separate_cfg = true;
    if (passes.one_branch) make_one_branch(config);
  };
  if (passes.one_branch && own.cache.config.enable_dynamic_prune_threshold) {
    refuse_one_branch("enable_dynamic_prune_threshold takes the conditional branch's differences");
  }
  fill(own.cache.config);
  for (ParamsModifier& modifier : own.modifiers) {
    if (modifier.cache_config) fill(*modifier.cache_config);
  }
  return std::make_unique<cache::CachedBlockRunner>(std::move(own));
}

}  // namespace cachedit::pipelines
