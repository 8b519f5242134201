// The relative difference that caching decides by: mean|previous - current| / mean|previous|.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cachedit::cache {

struct DifferenceOptions {
  int64_t downsample_factor = 1;
  /// Above 0: tokens whose own relative difference does not exceed it are left out, unless all are.
  double important_condition_threshold = 0;
};

/// Sums over some tokens, of which those of several ranks can be added.
struct DifferenceSums {
  double change = 0;     ///< of |previous - current|
  double magnitude = 0;  ///< of |previous|
  /// The same over the tokens that count by important_condition_threshold, and their number.
  double important_change = 0;
  double important_magnitude = 0;
  double important_tokens = 0;

  /// NaN where |previous| is 0 and nothing changed.
  double relative() const {
    return important_tokens > 0 ? important_change / important_magnitude : change / magnitude;
  }
};

/// `previous` [B, N, C'], where every downsample_factor-th channel was kept, against states - base
/// [B, N, C] (states alone if base is undefined).
DifferenceSums difference_sums(const at::Tensor& previous, const at::Tensor& states,
                               const at::Tensor& base, const DifferenceOptions& options);

/// Channels 0, n, 2n... [B, N, C / n], contiguous.
at::Tensor every_nth_channel(const at::Tensor& states, int64_t n);

/// Whether `previous` was kept of states of this shape.
bool shape_matches(const at::Tensor& previous, const at::Tensor& states, int64_t downsample_factor);

}  // namespace cachedit::cache
