// The state of caching for one block list in one run: counters, limits, buffers and decisions, as
// in cache-dit's CachedContext. Knows tensors, not blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/calibrators/calibrator.h"
#include "cache/config_check.h"
#include "cachedit/cache_stats.h"
#include "comm/communicator.h"

namespace cachedit::cache {

class Context {
 public:
  /// `group`: the ranks that hold parts of the same states and decide together, all of which must
  /// make the same calls; null: this one alone. Throws ConfigError for options out of range.
  Context(std::string name, CacheOptions options, comm::Communicator* group = nullptr);

  /// Starts a forward pass: drops stale state where the options say so, then advances counters.
  void begin_step();

  /// What decisions look at: states, or states - base if `base` is defined. The encoder's shape
  /// must stay as well; it may be undefined.
  struct Compared {
    at::Tensor states;
    at::Tensor base;
    at::Tensor encoder;
  };
  /// Whether this pass may reuse slot `slot`. Records the difference.
  bool can_reuse(const Compared& now, int64_t slot);
  /// Keeps what the next can_reuse() of the slot compares with. Without a base, the states
  /// themselves are kept: nobody may write into them afterwards.
  void keep_compared(const Compared& now, int64_t slot);

  /// Records a reused step (once per step and branch) or pruned blocks of this step.
  void count_reuse();
  void count_blocks(int64_t pruned, int64_t all);

  /// What the slot's blocks added to (or made of) the streams at a computed pass: output and input
  /// of the blocks. Encoder tensors may be undefined.
  void keep_result(const at::Tensor& output, const at::Tensor& input, int64_t slot);
  void keep_encoder_result(const at::Tensor& output, const at::Tensor& input, int64_t slot);
  /// The streams after the slot's blocks, forecast or as last computed.
  at::Tensor reuse(const at::Tensor& input, int64_t slot);
  at::Tensor reuse_encoder(const at::Tensor& input, int64_t slot);

  /// static_skips_Fn_blocks: cached steps run no block but the last Bn.
  bool decides_by_mask_alone() const { return options_.config.static_skips_Fn_blocks; }
  /// Decisions compare hidden states instead of residuals.
  bool compares_hidden_states() const;
  /// keep_result() or keep_encoder_result() keeps an output itself: nobody may write into it
  /// afterwards.
  bool keeps_outputs() const;
  const CacheOptions& options() const { return options_; }
  const std::string& name() const { return name_; }
  CacheStats statistics() const;

 private:
  struct Slot {
    at::Tensor compared;
    at::Tensor result;
    at::Tensor encoder_result;
    std::vector<int64_t> encoder_sizes;
    double diff = 0;  ///< the last one measured, at step diff_step
    int64_t diff_step = -1;
  };
  struct Branch {
    std::map<int64_t, Slot> slots;
    std::unique_ptr<Calibrator> calibrator;
    std::unique_ptr<Calibrator> encoder_calibrator;
    CacheBranchStats stats;
    double accumulated_diff = 0;
    int64_t continuous_cached_steps = 0;
  };

  bool is_cfg_pass() const;
  Branch& branch() { return is_cfg_pass() ? cfg_ : main_; }
  int64_t current_step() const { return executed_steps_ - 1; }
  int64_t current_pass() const { return executed_passes_ - 1; }
  void refresh_if_due();
  void reset();
  std::unique_ptr<Calibrator> make_calibrator(bool enabled, const char* stream) const;
  bool in_warmup() const;
  bool limits_reached();
  double threshold() const;
  /// On every rank.
  bool fits(const Compared& now, const Slot& kept) const;
  bool similar(const Compared& now, int64_t slot, Slot& kept);
  double difference(const Compared& now, int64_t slot, const Slot& kept) const;
  void add_diff(double diff);
  /// Diffs of this step, or null.
  const std::vector<double>* diffs_of_step(const Branch& branch) const;
  bool keeps_residual() const;
  bool keeps_encoder_residual() const;
  void measure_buffers();

  std::string name_;
  CacheOptions options_;
  comm::Communicator* group_;
  Branch main_;
  Branch cfg_;
  int64_t executed_steps_ = 0;
  int64_t executed_passes_ = 0;
  int64_t accumulated_steps_ = 0;
  int64_t accumulated_passes_ = 0;
  int64_t peak_buffer_bytes_ = 0;
  bool refreshed_ = false;  ///< by force_refresh_step_hint
};

}  // namespace cachedit::cache
