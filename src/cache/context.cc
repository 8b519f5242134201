#include "cache/context.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <utility>

#include "cache/residual_difference.h"
#include "comm/collectives.h"

namespace cachedit::cache {
namespace {

// Values in place of a difference that was not measured, as cache-dit records them.
constexpr double kAlwaysSimilar = -1.0;
constexpr double kShapeChanged = -2.0;

/// buffer = value - base, into the buffer's own memory where it fits.
void subtract_into(at::Tensor& buffer, const at::Tensor& value, const at::Tensor& base) {
  const bool fits = buffer.defined() && buffer.sizes() == value.sizes() &&
                    buffer.scalar_type() == value.scalar_type();
  if (fits) {
    at::sub_out(buffer, value, base);
  } else {
    buffer = value - base;
  }
}

/// Of the tokens of all ranks, so that they decide alike, and as one rank with all tokens would.
DifferenceSums over_all_ranks(const DifferenceSums& sums, comm::Communicator& group) {
  const std::vector<double> all =
      comm::all_reduce_sum(group, {sums.change, sums.magnitude, sums.important_change,
                                   sums.important_magnitude, sums.important_tokens});
  return {.change = all[0],
          .magnitude = all[1],
          .important_change = all[2],
          .important_magnitude = all[3],
          .important_tokens = all[4]};
}

int64_t bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0; }

}  // namespace

Context::Context(std::string name, CacheOptions options, comm::Communicator* group)
    : name_(std::move(name)), options_(std::move(options)), group_(group) {
  check(options_);
  if (options_.type == CacheType::kDBPrune && options_.calibrator &&
      options_.config.force_reduce_calibrator_vram) {
    options_.config.downsample_factor = std::max<int64_t>(4, options_.config.downsample_factor);
  }
  reset();
}

std::unique_ptr<Calibrator> Context::make_calibrator(bool enabled, const char* stream) const {
  if (!options_.calibrator || !enabled) return nullptr;
  const LinearSteps* weights = nullptr;
  if (options_.linear) {
    const auto context = options_.linear->contexts.find(name_);
    if (context != options_.linear->contexts.end()) {
      const auto steps = context->second.find(stream);
      if (steps != context->second.end()) weights = &steps->second;
    }
  }
  return std::make_unique<Calibrator>(*options_.calibrator, weights);
}

void Context::reset() {
  const auto fresh = [&] {
    const CalibratorConfig calibrator = options_.calibrator.value_or(CalibratorConfig());
    Branch branch;
    branch.calibrator = make_calibrator(calibrator.enable_calibrator, "hidden");
    branch.encoder_calibrator = make_calibrator(calibrator.enable_encoder_calibrator, "encoder");
    return branch;
  };
  main_ = fresh();
  cfg_ = fresh();
  executed_steps_ = 0;
  executed_passes_ = 0;
}

bool Context::is_cfg_pass() const {
  if (!options_.config.enable_separate_cfg.value_or(false)) return false;
  const bool odd = current_pass() % 2 != 0;
  return options_.config.cfg_compute_first ? !odd : odd;
}

void Context::refresh_if_due() {
  const DBPruneConfig& c = options_.config;
  if (c.num_inference_steps) {
    // Counted over forced refreshes, which do not begin a request.
    const int64_t passes_per_step = c.enable_separate_cfg.value_or(false) ? 2 : 1;
    if (accumulated_passes_ >= passes_per_step * *c.num_inference_steps) {
      reset();
      accumulated_steps_ = 0;
      accumulated_passes_ = 0;
      refreshed_ = false;
      return;
    }
  }
  const bool may_refresh =
      c.force_refresh_step_policy == ForceRefreshStepPolicy::kRepeat || !refreshed_;
  if (c.force_refresh_step_hint && executed_passes_ == *c.force_refresh_step_hint && may_refresh) {
    const int64_t cached = main_.stats.accumulated_cached_steps;
    const int64_t cfg_cached = cfg_.stats.accumulated_cached_steps;
    reset();
    main_.stats.accumulated_cached_steps = cached;
    cfg_.stats.accumulated_cached_steps = cfg_cached;
    refreshed_ = true;
  }
}

void Context::begin_step() {
  refresh_if_due();
  ++executed_passes_;
  ++accumulated_passes_;
  const bool separate = options_.config.enable_separate_cfg.value_or(false);
  // With separate CFG two passes make a step, which the first of them opens.
  const bool opens_step = !separate || options_.config.cfg_compute_first == is_cfg_pass();
  if (opens_step) {
    ++executed_steps_;
    ++accumulated_steps_;
  }
  Branch& b = branch();
  const std::vector<int64_t>& cached = b.stats.cached_steps;
  if (cached.empty() || cached.back() != current_step() - 1) b.continuous_cached_steps = 0;
  if (b.calibrator) b.calibrator->begin_step();
  if (b.encoder_calibrator) b.encoder_calibrator->begin_step();
}

bool Context::in_warmup() const {
  const DBPruneConfig& c = options_.config;
  int64_t warmup = c.max_warmup_steps;
  if (!c.steps_computation_mask.empty()) {
    const auto& mask = c.steps_computation_mask;
    const auto leading = std::find(mask.begin(), mask.end(), 0) - mask.begin();
    warmup = std::min<int64_t>(warmup, leading);
  }
  return current_step() < warmup && current_step() % c.warmup_interval == 0;
}

bool Context::limits_reached() {
  const DBPruneConfig& c = options_.config;
  const Branch& b = branch();
  const auto cached = static_cast<int64_t>(b.stats.cached_steps.size());
  if (c.max_cached_steps >= 0 && cached >= c.max_cached_steps) return true;
  int64_t continuous = b.continuous_cached_steps;
  // DBPrune decides several times in a step; a hit of this step does not count yet.
  if (cached > 0 && b.stats.cached_steps.back() == current_step()) --continuous;
  if (c.max_continuous_cached_steps >= 0 && continuous >= c.max_continuous_cached_steps) {
    return true;
  }
  const double limit = c.max_accumulated_residual_diff_threshold.value_or(0);
  return limit > 0 && b.accumulated_diff >= limit;
}

double Context::threshold() const {
  const DBPruneConfig& c = options_.config;
  if (options_.type == CacheType::kDBCache) {
    return c.l1_hidden_states_diff_threshold.value_or(c.residual_diff_threshold);
  }
  if (!c.enable_dynamic_prune_threshold) return c.residual_diff_threshold;
  const std::vector<double>* diffs = diffs_of_step(main_);
  if (diffs == nullptr) return c.residual_diff_threshold;
  double sum = 0;
  int64_t count = 0;
  constexpr size_t kFirstDiffs = 5;
  for (size_t i = 0; i < std::min(diffs->size(), kFirstDiffs); ++i) {
    if (!((*diffs)[i] > 0)) continue;
    sum += (*diffs)[i];
    ++count;
  }
  if (count == 0) return c.residual_diff_threshold;
  const double relaxed = sum / static_cast<double>(count) * c.dynamic_prune_threshold_relax_ratio;
  const double most = c.max_dynamic_prune_threshold.value_or(2 * c.residual_diff_threshold);
  return relaxed < most ? std::max(relaxed, c.residual_diff_threshold) : c.residual_diff_threshold;
}

bool Context::can_reuse(const Compared& now, int64_t slot) {
  const DBPruneConfig& c = options_.config;
  Slot& kept = branch().slots[slot];
  // Nothing was computed yet for this branch: there is nothing to reuse, whatever a mask says.
  if (!kept.compared.defined() || in_warmup()) return false;
  if (!c.steps_computation_mask.empty()) {
    const auto step = static_cast<size_t>(current_step());
    const auto& mask = c.steps_computation_mask;
    if (step < mask.size() && mask[step] == 1) return false;
    if (c.steps_computation_policy == StepsComputationPolicy::kStatic) {
      return fits(now, kept);
    }
  }
  if (limits_reached() || threshold() <= 0) return false;
  return similar(now, slot, kept);
}

bool Context::fits(const Compared& now, const Slot& slot) const {
  const bool encoder_fits = !now.encoder.defined() || now.encoder.sizes() == slot.encoder_sizes;
  const bool here =
      encoder_fits && shape_matches(slot.compared, now.states, options_.config.downsample_factor);
  if (group_ == nullptr) return here;
  // Another length may change one rank's part alone: what only one rank knows decides nothing.
  return comm::all_reduce_sum(*group_, {here ? 0.0 : 1.0})[0] == 0;
}

bool Context::similar(const Compared& now, int64_t slot, Slot& kept) {
  const double limit = threshold();
  if (!fits(now, kept)) {
    add_diff(kShapeChanged);
    return false;
  }
  if (limit >= 1) {
    add_diff(kAlwaysSimilar);
    return true;
  }
  kept.diff = difference(now, slot, kept);
  kept.diff_step = current_step();
  add_diff(kept.diff);
  return kept.diff < limit;  // false for NaN
}

double Context::difference(const Compared& now, int64_t slot, const Slot& kept) const {
  if (is_cfg_pass() && !options_.config.cfg_diff_compute_separate) {
    const auto conditional = main_.slots.find(slot);
    if (conditional != main_.slots.end() && conditional->second.diff_step == current_step()) {
      return conditional->second.diff;
    }
  }
  const DifferenceSums sums = difference_sums(
      kept.compared, now.states, now.base,
      {.downsample_factor = options_.config.downsample_factor,
       .important_condition_threshold = options_.config.important_condition_threshold});
  return group_ == nullptr ? sums.relative() : over_all_ranks(sums, *group_).relative();
}

const std::vector<double>* Context::diffs_of_step(const Branch& branch) const {
  const auto& diffs = branch.stats.residual_diffs;
  return diffs.empty() || diffs.back().first != current_step() ? nullptr : &diffs.back().second;
}

void Context::add_diff(double diff) {
  Branch& b = branch();
  auto& diffs = b.stats.residual_diffs;
  const bool first = diffs.empty() || diffs.back().first != current_step();
  if (first) diffs.push_back({current_step(), {}});
  if (options_.type == CacheType::kDBPrune) {
    diffs.back().second.push_back(diff);
  } else if (first) {
    diffs.back().second.push_back(diff);
    if (diff > 0) b.accumulated_diff += diff;
  }
}

void Context::keep_compared(const Compared& now, int64_t slot) {
  Slot& kept = branch().slots[slot];
  const int64_t factor = options_.config.downsample_factor;
  if (factor > 1) {
    const at::Tensor sparse = every_nth_channel(now.states, factor);
    kept.compared = now.base.defined() ? sparse - every_nth_channel(now.base, factor) : sparse;
  } else if (now.base.defined()) {
    subtract_into(kept.compared, now.states, now.base);
  } else {
    kept.compared = now.states;
  }
  kept.encoder_sizes = now.encoder.defined() ? now.encoder.sizes().vec() : std::vector<int64_t>();
  measure_buffers();
}

void Context::count_reuse() {
  Branch& b = branch();
  if (!b.stats.cached_steps.empty() && b.stats.cached_steps.back() == current_step()) return;
  b.stats.cached_steps.push_back(current_step());
  ++b.continuous_cached_steps;
  ++b.stats.accumulated_cached_steps;
}

void Context::count_blocks(int64_t pruned, int64_t all) {
  branch().stats.pruned_blocks.push_back(pruned);
  branch().stats.actual_blocks.push_back(all);
}

bool Context::compares_hidden_states() const {
  return options_.type == CacheType::kDBCache &&
         options_.config.l1_hidden_states_diff_threshold.value_or(0) > 0;
}

bool Context::keeps_outputs() const { return !keeps_residual() || !keeps_encoder_residual(); }

bool Context::keeps_residual() const {
  return !options_.calibrator || !options_.calibrator->enable_calibrator ||
         options_.calibrator->calibrator_cache_type == CalibratorCacheType::kResidual;
}

bool Context::keeps_encoder_residual() const {
  return !options_.calibrator || !options_.calibrator->enable_encoder_calibrator ||
         options_.calibrator->calibrator_cache_type == CalibratorCacheType::kResidual;
}

void Context::keep_result(const at::Tensor& output, const at::Tensor& input, int64_t slot) {
  Branch& b = branch();
  if (b.calibrator) {
    b.calibrator->update(keeps_residual() ? output - input : output, slot);
  } else {
    subtract_into(b.slots[slot].result, output, input);
  }
  measure_buffers();
}

void Context::keep_encoder_result(const at::Tensor& output, const at::Tensor& input, int64_t slot) {
  if (!output.defined() || !input.defined()) return;
  Branch& b = branch();
  if (b.encoder_calibrator) {
    b.encoder_calibrator->update(keeps_encoder_residual() ? output - input : output, slot);
  } else {
    subtract_into(b.slots[slot].encoder_result, output, input);
  }
  measure_buffers();
}

at::Tensor Context::reuse(const at::Tensor& input, int64_t slot) {
  Branch& b = branch();
  const at::Tensor kept = b.calibrator ? b.calibrator->approximate(slot) : b.slots.at(slot).result;
  return keeps_residual() ? kept + input : kept;
}

at::Tensor Context::reuse_encoder(const at::Tensor& input, int64_t slot) {
  if (!input.defined()) return input;
  Branch& b = branch();
  const at::Tensor kept = b.encoder_calibrator ? b.encoder_calibrator->approximate(slot)
                                               : b.slots.at(slot).encoder_result;
  if (!kept.defined()) return input;
  return keeps_encoder_residual() ? kept + input : kept;
}

void Context::measure_buffers() {
  int64_t bytes = 0;
  for (const Branch* b : {&main_, &cfg_}) {
    for (const auto& [id, slot] : b->slots) {
      bytes += bytes_of(slot.compared) + bytes_of(slot.result) + bytes_of(slot.encoder_result);
    }
    if (b->calibrator) bytes += b->calibrator->bytes();
    if (b->encoder_calibrator) bytes += b->encoder_calibrator->bytes();
  }
  peak_buffer_bytes_ = std::max(peak_buffer_bytes_, bytes);
}

CacheStats Context::statistics() const {
  CacheStats stats;
  stats.name = name_;
  stats.config = options_.type == CacheType::kDBPrune
                     ? strify(options_.config)
                     : strify(static_cast<const DBCacheConfig&>(options_.config));
  stats.config.push_back('_');
  stats.config.append(options_.calibrator ? strify(*options_.calibrator) : std::string("T0O0"));
  stats.conditional = main_.stats;
  stats.unconditional = cfg_.stats;
  stats.executed_steps = accumulated_steps_;
  stats.transformer_executed_steps = accumulated_passes_;
  stats.peak_buffer_bytes = peak_buffer_bytes_;
  return stats;
}

}  // namespace cachedit::cache
