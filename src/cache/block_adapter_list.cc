#include "cache/block_adapter_list.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "base/fail.h"

namespace cachedit::cache {
namespace {

constexpr const char* kWhere = "BlockAdapter";

}  // namespace

CachedList::CachedList(const BlockAdapter& adapter, const AdaptedBlocks& list, CacheOptions options,
                       std::string mask_policy)
    : list_(list),
      mask_policy_(std::move(mask_policy)),
      world_(adapter.world),
      checks_(adapter.check_forward_pattern),
      separate_(adapter.has_separate_cfg) {
  for (size_t i = 0; i < list_.blocks.size(); ++i) {
    blocks_.push_back(std::make_unique<FunctionBlock>(
        list_.blocks[i],
        FunctionBlock::Place{.list = list_.name,
                             .index = static_cast<int64_t>(i),
                             .pattern = list_.forward_pattern,
                             .check_outputs = checks_ && adapter.check_num_outputs}));
  }
  set_options(checked(std::move(options)));
}

CacheOptions CachedList::checked(CacheOptions options) const {
  auto& separate = options.config.enable_separate_cfg;
  if (!separate && separate_) separate = true;
  if (options.calibrator && options.calibrator->calibrator_type == CalibratorType::kLinear) {
    fail<UnsupportedError>(kWhere,
                           "the linear calibrator's coefficients are fitted for pipelines: take "
                           "kTaylorSeer, kFoCa or kDMD for '",
                           list_.name, "'");
  }
  const PatternTraits pattern = traits(list_.forward_pattern);
  if (options.config.static_skips_Fn_blocks && !pattern.takes_encoder && pattern.returns_encoder) {
    fail<ConfigError>(kWhere,
                      "static_skips_Fn_blocks needs a pattern whose encoder_hidden_states, "
                      "if any, come from outside: got pattern ",
                      pattern.number, " for '", list_.name, "'");
  }
  check(options);
  check_blocks(options, static_cast<int64_t>(list_.blocks.size()), list_.name);
  if (options.config.num_inference_steps) {
    check_steps(options, *options.config.num_inference_steps);
  }
  return options;
}

void CachedList::set_options(CacheOptions options) {
  options_ = std::move(options);
  refresh();
}

void CachedList::refresh() {
  runner_.reset();
  last_ = {.step = -1, .num_steps = 0};
  passes_ = 0;
}

std::vector<at::Tensor> CachedList::forward(const BlockInputs& inputs, bool caches) {
  const c10::NoGradGuard no_grad;
  nn::Streams streams = checked_inputs(inputs, list_.forward_pattern, list_.name, checks_);
  if (caches) begin_pass(inputs.step);
  FunctionContext context;
  context.extra = &inputs.extra;
  nn::BlockList list{.name = list_.name, .writes_inputs = list_.writes_inputs};
  for (const auto& block : blocks_) list.blocks.push_back(block.get());
  try {
    streams = caches ? runner_->run({list}, std::move(streams), context, {.num_steps = steps_})
                     : nn::PlainBlockRunner().run({list}, std::move(streams), context, {});
  } catch (...) {
    // Counters stand in the middle of a pass; the next one must not build on that.
    refresh();
    throw;
  }
  return ordered_outputs(streams, list_.forward_pattern);
}

CacheStats CachedList::statistics() const {
  if (runner_) {
    const std::vector<CacheStats> all = runner_->statistics();
    if (!all.empty()) return all.front();
  }
  return Context(list_.name, options_).statistics();
}

void CachedList::begin_pass(const std::optional<RequestStep>& step) {
  if (step && (step->step < 0 || step->step >= step->num_steps)) {
    fail<InputError>(kWhere, "step must lie in the request: got ", step->step, " of ",
                     step->num_steps, " steps for '", list_.name, "'");
  }
  if (step && begins_request(*step)) refresh();
  if (!runner_) runner_ = make_runner(step);
  if (!step) return;
  passes_ = step->step == last_.step ? passes_ + 1 : 1;
  last_ = *step;
}

bool CachedList::begins_request(const RequestStep& step) const {
  if (step.num_steps != last_.num_steps || step.step < last_.step) return true;
  const int64_t passes = options_.config.enable_separate_cfg.value_or(false) ? 2 : 1;
  return step.step == last_.step && passes_ >= passes;
}

std::unique_ptr<CachedBlockRunner> CachedList::make_runner(const std::optional<RequestStep>& step) {
  CacheOptions options = options_;
  std::vector<int64_t>& mask = options.config.steps_computation_mask;
  std::optional<int64_t>& configured = options.config.num_inference_steps;
  const std::optional<int64_t> steps = step ? step->num_steps : configured;
  // The length that a request states replaces the configured one.
  if (configured) configured = steps;
  if (!mask_policy_.empty() && mask.empty()) {
    if (!steps) {
      fail<ConfigError>(kWhere, "steps_mask_policy needs the number of steps of '", list_.name,
                        "': set num_inference_steps, or give `step` with every pass");
    }
    mask = steps_mask(mask_policy_, *steps);
  }
  // Where nobody says how many steps there are, a mask does.
  steps_ = steps.value_or(static_cast<int64_t>(mask.size()));
  check_steps(options, steps_);
  return std::make_unique<CachedBlockRunner>(RunnerOptions{
      .cache = std::move(options), .group = world_.size() > 1 ? &world_.communicator() : nullptr});
}

}  // namespace cachedit::cache
