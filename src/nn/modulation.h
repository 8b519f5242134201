// Adaptive layer norm: shift, scale and gate of a block come from the conditioning vector.
// Peebles & Xie 2022, arXiv 2212.09748 (adaLN-Zero); names as in diffusers' normalization layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "nn/fused_operators.h"  // what the vectors are for
#include "nn/layers.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

/// The projection "linear" [parts * C, C] of the activated conditioning [..., B, C] into `parts`
/// vectors [..., B, C], one behind the other in the last dimension.
class Modulation {
 public:
  Modulation(const WeightScope& scope, int64_t width, int64_t parts);
  at::Tensor operator()(const at::Tensor& activated_conditioning) const;
  int64_t parts() const { return parts_; }

 private:
  int64_t parts_;
  Linear linear_;
};

/// The vectors of all modulations in every step of one run. Conditioning depends on time, guidance
/// and pooled text only, so that it is known for all steps before the first: a block that asks for
/// its vectors has them computed for the coming steps, too, and its weight, which costs more to
/// read than to multiply, is read once for all of them. Blocks that never run cost nothing.
class ModulationTable {
 public:
  /// Bounds what is held: FLUX.1-dev's vectors of so many steps take 34 MB in bf16.
  static constexpr int64_t kStepsAtOnce = 16;

  /// `conditioning` [steps, B, C], after its activation.
  explicit ModulationTable(at::Tensor conditioning) : conditioning_(std::move(conditioning)) {}

  /// `modulation`'s vectors [B, C] in `step`, from 0; throws InputError outside the run. The
  /// object must outlive the table.
  std::vector<at::Tensor> vectors(const Modulation& modulation, int64_t step);

 private:
  struct Rows {
    int64_t first = 0;
    at::Tensor values;  // [steps at once, B, parts * C]
  };

  at::Tensor conditioning_;
  std::unordered_map<const Modulation*, Rows> rows_;
};

}  // namespace cachedit::nn
