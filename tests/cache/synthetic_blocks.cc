#include "synthetic_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>

#include <string>

#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::test {
namespace {

at::Tensor wave(const std::string& name, at::IntArrayRef shape, double time) {
  const at::Tensor a = tiny_weight(name + ".a", shape);
  const at::Tensor b = tiny_weight(name + ".b", shape);
  return a * std::cos(0.1 * time) + b * std::sin(0.07 * time) + a * b * (0.02 * time);
}

}  // namespace

nn::Streams SyntheticBlock::forward(const nn::Streams& streams, const nn::BlockContext&) const {
  ++calls_;
  at::Tensor change = strength_ * at::tanh(streams.hidden);
  if (streams.encoder.defined()) change = change + 0.1 * strength_ * streams.encoder.mean();
  at::Tensor encoder_change =
      streams.encoder.defined() ? strength_ * at::tanh(streams.encoder) : at::Tensor();
  if (!writes_input_) {
    return {.hidden = streams.hidden + change,
            .encoder = streams.encoder.defined() ? streams.encoder + encoder_change : at::Tensor()};
  }
  nn::Streams same = streams;
  same.hidden.add_(change);
  if (same.encoder.defined()) same.encoder.add_(encoder_change);
  return same;
}

SyntheticList::SyntheticList(int64_t blocks, bool writes_inputs, std::string_view name)
    : name_(name), writes_inputs_(writes_inputs) {
  for (int64_t i = 0; i < blocks; ++i) {
    const double strength = 0.1 + 0.05 * static_cast<double>(i);
    blocks_.push_back(std::make_unique<SyntheticBlock>(strength, writes_inputs));
  }
}

nn::BlockList SyntheticList::list() const {
  nn::BlockList list{.name = name_, .blocks = {}, .writes_inputs = writes_inputs_};
  for (const auto& block : blocks_) list.blocks.push_back(block.get());
  return list;
}

int64_t SyntheticList::calls() const {
  int64_t sum = 0;
  for (const auto& block : blocks_) sum += block->calls();
  return sum;
}

nn::Streams synthetic_input(int64_t step, uint64_t seed, double speed) {
  const double time = speed * static_cast<double>(step);
  const std::string name = "input" + std::to_string(seed);
  return {.hidden = wave(name + ".hidden", {1, 8, 16}, time),
          .encoder = wave(name + ".encoder", {1, 3, 16}, time)};
}

cache::RunnerOptions runner_options(const DBCacheConfig& config) {
  cache::RunnerOptions options;
  static_cast<DBCacheConfig&>(options.cache.config) = config;
  return options;
}

cache::RunnerOptions runner_options(const DBPruneConfig& config) {
  cache::RunnerOptions options;
  options.cache.type = CacheType::kDBPrune;
  options.cache.config = config;
  return options;
}

SyntheticRun run_steps(nn::BlockRunner& runner, const SyntheticList& list, int64_t steps,
                       uint64_t seed) {
  SyntheticRun run;
  for (int64_t step = 0; step < steps; ++step) {
    const nn::Streams out = runner.run({list.list()}, synthetic_input(step, seed), {},
                                       {.step = step, .num_steps = steps});
    // Copies: lists that write may write into what they returned.
    run.outputs.push_back({.hidden = out.hidden.clone(), .encoder = out.encoder.clone()});
  }
  if (const auto* cached = dynamic_cast<const cache::CachedBlockRunner*>(&runner)) {
    run.stats = cached->statistics();
  }
  return run;
}

SyntheticRun run_steps(const cache::RunnerOptions& options, const SyntheticList& list,
                       int64_t steps, uint64_t seed) {
  cache::CachedBlockRunner runner(options);
  return run_steps(runner, list, steps, seed);
}

bool same_outputs(const SyntheticRun& a, const SyntheticRun& b) {
  if (a.outputs.size() != b.outputs.size()) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (!same_values(a.outputs[i].hidden, b.outputs[i].hidden)) return false;
    if (!same_values(a.outputs[i].encoder, b.outputs[i].encoder)) return false;
  }
  return true;
}

}  // namespace cachedit::test
