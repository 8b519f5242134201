// Block caching for a transformer of one's own: its blocks as functions, and what they take and
// return. examples/cache_your_transformer.cc is a complete program.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cachedit/cache_config.h"
#include "cachedit/cache_stats.h"
#include "cachedit/enable_cache.h"
#include "cachedit/export.h"

namespace cachedit {

/// What every block of a list takes, and in which order it returns it: cache-dit's patterns.
enum class ForwardPattern {
  kPattern0,  ///< (hidden_states, encoder_hidden_states) -> the same
  kPattern1,  ///< (hidden_states, encoder_hidden_states) -> (encoder_hidden_states, hidden_states)
  kPattern2,  ///< (hidden_states, encoder_hidden_states) -> hidden_states
  kPattern3,  ///< hidden_states -> hidden_states
  kPattern4,  ///< hidden_states -> (hidden_states, encoder_hidden_states)
  kPattern5,  ///< hidden_states -> (encoder_hidden_states, hidden_states)
};

/// A block: takes the tensors of its pattern and after them BlockInputs::extra, gives those that
/// the pattern returns. hidden_states keep shape [B, N, C], dtype and device from block to block.
using BlockFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct AdaptedBlocks {
  std::string name = "blocks";  ///< of the context; unique within the adapter
  std::vector<BlockFunction> blocks;
  ForwardPattern forward_pattern = ForwardPattern::kPattern0;
  /// Blocks may write into what they are handed; caching then keeps copies. Set it to false only
  /// for blocks that return new tensors which nobody writes into before the next pass.
  bool writes_inputs = true;
};

struct BlockAdapter {
  /// Every list decides for itself. Nothing is known of what lies between them.
  std::vector<AdaptedBlocks> lists;
  /// Every denoising step is two forward passes, the conditional one first. What
  /// DBCacheConfig::enable_separate_cfg says counts more.
  bool has_separate_cfg = false;
  /// False: neither inputs nor outputs are checked. encoder_hidden_states may then be undefined...
  bool check_forward_pattern = true;
  /// ...and with this one false as well a block may return one tensor (hidden_states) or two (in
  /// the pattern's order; patterns 2 and 3: encoder_hidden_states first), as cache-dit takes them.
  bool check_num_outputs = true;
  /// Ranks that hold parts of the same hidden states: they decide together, by the differences of
  /// all of them, and must call together. The blocks exchange what they need themselves.
  World world;
};

/// Where in a request a forward pass stands.
struct RequestStep {
  int64_t step = 0;       ///< from 0; equal in both passes of separate CFG
  int64_t num_steps = 1;  ///< of the request
};

struct BlockInputs {
  at::Tensor hidden_states;
  at::Tensor encoder_hidden_states;  ///< patterns 0 to 2 only
  /// Handed to every block after the streams (conditioning, rotary angles...).
  std::vector<at::Tensor> extra;
  /// Given: a step that does not follow the last one, or another num_steps, begins a new request.
  /// Not given: a request ends after num_inference_steps steps, or with refresh_context().
  std::optional<RequestStep> step;
};

/// The lists of an adapter with caching. Contexts live as long as the object, over requests. One
/// call at a time per object; objects share nothing.
class CACHEDIT_API CachedBlocks {
 public:
  /// Options are those of a pipeline: cache_config (not given: DBCacheConfig's defaults),
  /// calibrator_config, steps_mask_policy, params_modifiers for the first, second... list. Throws
  /// ConfigError for an adapter without blocks, values out of range, and Fn + Bn blocks that exceed
  /// a list; InputError for an unknown policy, and for an attention backend, which is the blocks'
  /// own business; UnsupportedError for the linear calibrator, whose coefficients are fitted for
  /// pipelines.
  explicit CachedBlocks(BlockAdapter adapter, const EnableCacheOptions& options = {});
  ~CachedBlocks();
  CachedBlocks(CachedBlocks&& other) noexcept;
  CachedBlocks& operator=(CachedBlocks&& other) noexcept;

  /// Runs a list, without gradients: returns what its pattern returns. Throws InputError for an
  /// unknown list or a step outside the request, ConfigError ("ForwardPattern mismatch") naming
  /// pattern, list, block and what came, and whatever a block throws. A failed pass ends the
  /// list's request.
  std::vector<at::Tensor> forward(const BlockInputs& inputs, int64_t list = 0);
  std::vector<at::Tensor> forward(const BlockInputs& inputs, std::string_view list);

  /// Begins a new request in every list, or in one, with what `changes` sets in place of the
  /// options so far. Throws as the constructor; nothing has changed then.
  void refresh_context(const ParamsModifier& changes = {});
  void refresh_context(std::string_view list, const ParamsModifier& changes = {});

  /// Disabled: every block is computed, and nothing is kept. enable() begins new requests.
  void disable();
  void enable();
  bool enabled() const;

  /// One record per list, of its current or last request.
  std::vector<CacheStats> summary() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The same as CachedBlocks(adapter, options).
CACHEDIT_API CachedBlocks enable_cache(BlockAdapter adapter,
                                       const EnableCacheOptions& options = {});

}  // namespace cachedit
