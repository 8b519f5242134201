#include "cache/cached_block_runner.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "base/fail.h"

namespace cachedit::cache {
namespace {

/// The decision and the reused middle of DBCache, and DBPrune's per-block state, are numbered.
constexpr int64_t kMiddle = 0;

/// A tensor that stays as it is while blocks run: itself, or a copy where blocks write into what
/// they are handed.
at::Tensor keep_safe(const at::Tensor& t, const nn::BlockList& list) {
  return t.defined() && list.writes_inputs ? t.clone() : t;
}

nn::Streams keep_safe(const nn::Streams& s, const nn::BlockList& list) {
  return {.hidden = keep_safe(s.hidden, list), .encoder = keep_safe(s.encoder, list)};
}

nn::Streams run_range(const nn::BlockList& list, int64_t begin, int64_t end, nn::Streams streams,
                      const nn::BlockContext& context) {
  for (int64_t i = begin; i < end; ++i) {
    streams = list.blocks[static_cast<size_t>(i)]->forward(streams, context);
  }
  return streams;
}

/// A residual of a whole sequence and a part of one would be nonsense, or a crash.
void check_same_tokens(const at::Tensor& before, const at::Tensor& after,
                       const nn::BlockList& list) {
  if (!before.defined() || before.sizes() == after.sizes()) return;
  fail<UnsupportedError>("cache", "the blocks of '", list.name,
                         "' must keep the shape of the hidden "
                         "states: got ",
                         before.sizes(), " before the first and ", after.sizes(),
                         " after the Fn-th; split a sequence before the first block and gather it "
                         "after the last");
}

nn::Streams reuse(Context& cache, const nn::Streams& in, int64_t slot, const nn::BlockList& list) {
  // A forecast may be a kept tensor: blocks that write get a copy.
  return keep_safe(nn::Streams{.hidden = cache.reuse(in.hidden, slot),
                               .encoder = cache.reuse_encoder(in.encoder, slot)},
                   list);
}

nn::Streams run_db_cache(Context& cache, const nn::BlockList& list, nn::Streams streams,
                         const nn::BlockContext& context) {
  const auto blocks = static_cast<int64_t>(list.blocks.size());
  // Nothing has to be compared where the mask alone decides.
  const bool by_mask = cache.decides_by_mask_alone();
  const int64_t first = by_mask ? 0 : cache.options().config.Fn_compute_blocks;
  const int64_t last = blocks - cache.options().config.Bn_compute_blocks;
  cache.begin_step();
  const at::Tensor entry = keep_safe(streams.hidden, list);
  streams = run_range(list, 0, first, std::move(streams), context);
  const at::Tensor base = by_mask || cache.compares_hidden_states() ? at::Tensor() : entry;
  check_same_tokens(base, streams.hidden, list);
  if (cache.can_reuse({streams.hidden, base, streams.encoder}, kMiddle)) {
    cache.count_reuse();
    streams = reuse(cache, streams, kMiddle, list);
  } else {
    const nn::Streams before = keep_safe(streams, list);
    cache.keep_compared({before.hidden, base, before.encoder}, kMiddle);
    streams = run_range(list, first, last, std::move(streams), context);
    const nn::Streams after = cache.keeps_outputs() ? keep_safe(streams, list) : streams;
    cache.keep_result(after.hidden, before.hidden, kMiddle);
    cache.keep_encoder_result(after.encoder, before.encoder, kMiddle);
  }
  return run_range(list, last, blocks, std::move(streams), context);
}

bool is_pruned_candidate(const DBPruneConfig& config, int64_t block, int64_t blocks) {
  const auto& kept = config.non_prune_block_ids;
  return block >= config.Fn_compute_blocks && block < blocks - config.Bn_compute_blocks &&
         std::find(kept.begin(), kept.end(), block) == kept.end();
}

nn::Streams run_db_prune(Context& cache, const nn::BlockList& list, nn::Streams streams,
                         const nn::BlockContext& context) {
  const auto blocks = static_cast<int64_t>(list.blocks.size());
  int64_t pruned = 0;
  cache.begin_step();
  for (int64_t i = 0; i < blocks; ++i) {
    if (!is_pruned_candidate(cache.options().config, i, blocks)) {
      streams = run_range(list, i, i + 1, std::move(streams), context);
    } else if (cache.can_reuse({streams.hidden, {}, streams.encoder}, i)) {
      cache.count_reuse();
      streams = reuse(cache, streams, i, list);
      ++pruned;
    } else {
      const nn::Streams before = keep_safe(streams, list);
      streams = run_range(list, i, i + 1, std::move(streams), context);
      const nn::Streams after = cache.keeps_outputs() ? keep_safe(streams, list) : streams;
      cache.keep_compared({before.hidden, {}, before.encoder}, i);
      cache.keep_result(after.hidden, before.hidden, i);
      cache.keep_encoder_result(after.encoder, before.encoder, i);
    }
  }
  cache.count_blocks(pruned, blocks);
  return streams;
}

/// All lists as one, under the name of the first.
nn::BlockList joined(const std::vector<nn::BlockList>& lists) {
  nn::BlockList all = lists.front();
  for (size_t i = 1; i < lists.size(); ++i) {
    all.blocks.insert(all.blocks.end(), lists[i].blocks.begin(), lists[i].blocks.end());
    all.writes_inputs = all.writes_inputs || lists[i].writes_inputs;
  }
  return all;
}

}  // namespace

CacheOptions modified(CacheOptions options, const ParamsModifier& modifier) {
  if (modifier.cache_config) {
    const DBCacheConfig base = options.config;
    auto& config = static_cast<DBCacheConfig&>(options.config);
    config = *modifier.cache_config;
    // As in cache-dit, what a modifier does not give stays.
    const auto inherit = [](auto& value, const auto& inherited) {
      if (!value) value = inherited;
    };
    inherit(config.max_accumulated_residual_diff_threshold,
            base.max_accumulated_residual_diff_threshold);
    inherit(config.enable_separate_cfg, base.enable_separate_cfg);
    inherit(config.num_inference_steps, base.num_inference_steps);
    inherit(config.force_refresh_step_hint, base.force_refresh_step_hint);
    inherit(config.l1_hidden_states_diff_threshold, base.l1_hidden_states_diff_threshold);
    if (config.steps_computation_mask.empty()) {
      config.steps_computation_mask = base.steps_computation_mask;
    }
    if (config.important_condition_threshold == 0) {
      config.important_condition_threshold = base.important_condition_threshold;
    }
    if (config.downsample_factor == 1) config.downsample_factor = base.downsample_factor;
  }
  if (modifier.calibrator_config) options.calibrator = modifier.calibrator_config;
  return options;
}

CachedBlockRunner::CachedBlockRunner(RunnerOptions options) : options_(std::move(options)) {
  check(options_.cache);
  for (const ParamsModifier& modifier : options_.modifiers) {
    check(modified(options_.cache, modifier));
  }
}

Context& CachedBlockRunner::context_of(const nn::BlockList& list, const nn::StepInfo& step) {
  const auto found = index_.find(list.name);
  if (found != index_.end()) return *contexts_[found->second];
  const size_t position = contexts_.size();
  CacheOptions options = options_.cache;
  if (position < options_.modifiers.size()) {
    options = modified(std::move(options), options_.modifiers[position]);
  }
  check_blocks(options, static_cast<int64_t>(list.blocks.size()), list.name);
  check_steps(options, step.num_steps);
  contexts_.push_back(
      std::make_unique<Context>(std::string(list.name), std::move(options), options_.group));
  index_.emplace(list.name, position);
  return *contexts_[position];
}

nn::Streams CachedBlockRunner::run_list(const nn::BlockList& list, nn::Streams streams,
                                        const nn::BlockContext& context, const nn::StepInfo& step) {
  if (list.blocks.empty()) return streams;
  Context& cache = context_of(list, step);
  return cache.options().type == CacheType::kDBPrune
             ? run_db_prune(cache, list, std::move(streams), context)
             : run_db_cache(cache, list, std::move(streams), context);
}

nn::Streams CachedBlockRunner::run(const std::vector<nn::BlockList>& lists, nn::Streams streams,
                                   const nn::BlockContext& context, const nn::StepInfo& step) {
  if (lists.empty()) return streams;
  if (!options_.separate_lists) {
    return run_list(lists.size() == 1 ? lists.front() : joined(lists), std::move(streams), context,
                    step);
  }
  // What one list returns, the next one is handed, so a list that writes endangers all of them.
  const bool writes = std::any_of(lists.begin(), lists.end(),
                                  [](const nn::BlockList& list) { return list.writes_inputs; });
  for (nn::BlockList list : lists) {
    list.writes_inputs = writes;
    streams = run_list(list, std::move(streams), context, step);
  }
  return streams;
}

std::vector<CacheStats> CachedBlockRunner::statistics() const {
  std::vector<CacheStats> all;
  for (const auto& context : contexts_) all.push_back(context->statistics());
  return all;
}

}  // namespace cachedit::cache
