#include "cachedit/block_adapter.h"

#include <set>
#include <utility>
#include <variant>

#include "base/fail.h"
#include "cache/block_adapter_list.h"

namespace cachedit {
namespace {

constexpr const char* kWhere = "BlockAdapter";

cache::CacheOptions cache_options(const EnableCacheOptions& options) {
  cache::CacheOptions result;
  if (const auto* prune = std::get_if<DBPruneConfig>(&options.cache_config)) {
    result.type = CacheType::kDBPrune;
    result.config = *prune;
  } else if (const auto* config = std::get_if<DBCacheConfig>(&options.cache_config)) {
    static_cast<DBCacheConfig&>(result.config) = *config;
  }
  result.calibrator = options.calibrator_config;
  return result;
}

/// Refuses an unknown policy now; the number of steps comes with each request.
void check_mask_policy(const EnableCacheOptions& options) {
  if (options.steps_mask_policy.empty()) return;
  constexpr int64_t kAnySteps = 28;
  steps_mask(options.steps_mask_policy, kAnySteps);
  if (!cache_options(options).config.steps_computation_mask.empty()) {
    fail<ConfigError>(kWhere,
                      "steps_mask_policy and steps_computation_mask exclude each other: give one");
  }
}

void check(const BlockAdapter& adapter, const EnableCacheOptions& options) {
  if (adapter.lists.empty()) fail<ConfigError>(kWhere, "needs at least one block list: got none");
  std::set<std::string_view> names;
  for (const AdaptedBlocks& list : adapter.lists) {
    if (list.blocks.empty()) fail<ConfigError>(kWhere, "'", list.name, "' has no blocks");
    if (!names.insert(list.name).second) {
      fail<ConfigError>(kWhere, "lists need names of their own: got '", list.name, "' twice");
    }
    for (size_t i = 0; i < list.blocks.size(); ++i) {
      if (!list.blocks[i]) fail<ConfigError>(kWhere, "block ", i, " of '", list.name, "' is empty");
    }
  }
  if (options.params_modifiers.size() > adapter.lists.size()) {
    fail<ConfigError>(kWhere, "params_modifiers must not outnumber the ", adapter.lists.size(),
                      " block lists: got ", options.params_modifiers.size());
  }
  check_mask_policy(options);
  for (const std::string& name :
       {options.attention_backend, options.parallelism_config.attention_backend}) {
    if (name.empty()) continue;
    fail<InputError>(kWhere, "the blocks choose their attention themselves: got backend '", name,
                     "'; leave it out");
  }
}

}  // namespace

struct CachedBlocks::Impl {
  std::vector<std::unique_ptr<cache::CachedList>> lists;
  bool enabled = true;

  cache::CachedList& at(std::string_view name) {
    std::string known;
    for (const auto& list : lists) {
      if (list->name() == name) return *list;
      known += (known.empty() ? "" : ", ") + list->name();
    }
    fail<InputError>(kWhere, "unknown block list: got '", name, "'; there is ", known);
  }

  cache::CachedList& at(int64_t index) {
    if (index < 0 || index >= static_cast<int64_t>(lists.size())) {
      fail<InputError>(kWhere, "unknown block list: got number ", index, " of ", lists.size(),
                       ", counted from 0");
    }
    return *lists[static_cast<size_t>(index)];
  }
};

CachedBlocks::CachedBlocks(BlockAdapter adapter, const EnableCacheOptions& options)
    : impl_(std::make_unique<Impl>()) {
  check(adapter, options);
  const cache::CacheOptions common = cache_options(options);
  for (size_t i = 0; i < adapter.lists.size(); ++i) {
    const auto& modifiers = options.params_modifiers;
    impl_->lists.push_back(std::make_unique<cache::CachedList>(
        adapter, adapter.lists[i],
        i < modifiers.size() ? cache::modified(common, modifiers[i]) : common,
        options.steps_mask_policy));
  }
}

CachedBlocks::~CachedBlocks() = default;
CachedBlocks::CachedBlocks(CachedBlocks&& other) noexcept = default;
CachedBlocks& CachedBlocks::operator=(CachedBlocks&& other) noexcept = default;

std::vector<at::Tensor> CachedBlocks::forward(const BlockInputs& inputs, int64_t list) {
  return impl_->at(list).forward(inputs, impl_->enabled);
}

std::vector<at::Tensor> CachedBlocks::forward(const BlockInputs& inputs, std::string_view list) {
  return impl_->at(list).forward(inputs, impl_->enabled);
}

void CachedBlocks::refresh_context(const ParamsModifier& changes) {
  std::vector<cache::CacheOptions> changed;
  for (const auto& list : impl_->lists) {
    changed.push_back(list->checked(cache::modified(list->options(), changes)));
  }
  for (size_t i = 0; i < changed.size(); ++i) {
    impl_->lists[i]->set_options(std::move(changed[i]));
  }
}

void CachedBlocks::refresh_context(std::string_view list, const ParamsModifier& changes) {
  cache::CachedList& chosen = impl_->at(list);
  chosen.set_options(chosen.checked(cache::modified(chosen.options(), changes)));
}

void CachedBlocks::disable() {
  impl_->enabled = false;
  for (const auto& list : impl_->lists) list->refresh();
}

void CachedBlocks::enable() {
  if (impl_->enabled) return;
  impl_->enabled = true;
}

bool CachedBlocks::enabled() const { return impl_->enabled; }

std::vector<CacheStats> CachedBlocks::summary() const {
  std::vector<CacheStats> all;
  for (const auto& list : impl_->lists) all.push_back(list->statistics());
  return all;
}

CachedBlocks enable_cache(BlockAdapter adapter, const EnableCacheOptions& options) {
  return CachedBlocks(std::move(adapter), options);
}

}  // namespace cachedit
