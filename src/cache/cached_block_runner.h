// The block runner that skips blocks: DBCache over whole lists, DBPrune block by block. One context
// per list (or one for all lists), kept over the forward passes of a run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/context.h"
#include "nn/block_runner.h"

namespace cachedit::cache {

struct RunnerOptions {
  CacheOptions cache;
  /// Lists that a model hands over together keep contexts of their own; else they count as one.
  bool separate_lists = false;
  /// For the first, second... context in the order in which they first run.
  std::vector<ParamsModifier> modifiers;
  /// The ranks that hold parts of the streams and run the same blocks: they decide together. Null:
  /// this one alone. Must outlive the runner.
  comm::Communicator* group = nullptr;
};

class CachedBlockRunner final : public nn::BlockRunner {
 public:
  /// Throws ConfigError for options out of range.
  explicit CachedBlockRunner(RunnerOptions options);

  /// Throws ConfigError where Fn + Bn blocks exceed a list, or a mask does not fit the steps.
  nn::Streams run(const std::vector<nn::BlockList>& lists, nn::Streams streams,
                  const nn::BlockContext& context, const nn::StepInfo& step) override;

  /// One record per context, in the order in which they first ran.
  std::vector<CacheStats> statistics() const;

 private:
  Context& context_of(const nn::BlockList& list, const nn::StepInfo& step);
  nn::Streams run_list(const nn::BlockList& list, nn::Streams streams,
                       const nn::BlockContext& context, const nn::StepInfo& step);

  RunnerOptions options_;
  std::vector<std::unique_ptr<Context>> contexts_;
  std::map<std::string, size_t, std::less<>> index_;
};

/// `options` with what a modifier sets in place of it.
CacheOptions modified(CacheOptions options, const ParamsModifier& modifier);

}  // namespace cachedit::cache
