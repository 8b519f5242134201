// One list of a BlockAdapter with its context: where requests begin and end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/block_adapter_function.h"
#include "cache/cached_block_runner.h"
#include "cachedit/block_adapter.h"

namespace cachedit::cache {

class CachedList {
 public:
  /// Throws as checked(). `mask_policy` empty: the options hold the mask, if there is one.
  CachedList(const BlockAdapter& adapter, const AdaptedBlocks& list, CacheOptions options,
             std::string mask_policy);

  const std::string& name() const { return list_.name; }
  const CacheOptions& options() const { return options_; }

  /// `options` with the adapter's defaults. Throws ConfigError or UnsupportedError where they do
  /// not fit the list.
  CacheOptions checked(CacheOptions options) const;
  /// Of checked() ones; begins a request.
  void set_options(CacheOptions options);

  /// The next pass begins a request.
  void refresh();
  std::vector<at::Tensor> forward(const BlockInputs& inputs, bool caches);
  CacheStats statistics() const;

 private:
  void begin_pass(const std::optional<RequestStep>& step);
  bool begins_request(const RequestStep& step) const;
  std::unique_ptr<CachedBlockRunner> make_runner(const std::optional<RequestStep>& step);

  AdaptedBlocks list_;
  std::string mask_policy_;
  World world_;
  bool checks_;
  bool separate_;
  std::vector<std::unique_ptr<FunctionBlock>> blocks_;
  CacheOptions options_;
  std::unique_ptr<CachedBlockRunner> runner_;
  RequestStep last_{.step = -1, .num_steps = 0};
  int64_t passes_ = 0;  ///< of last_
  int64_t steps_ = 0;   ///< of the request, as far as known
};

}  // namespace cachedit::cache
