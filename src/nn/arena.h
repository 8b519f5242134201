// Buffers for what blocks need between their operators: made once, reused by every block and step.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace cachedit::nn {

class Arena {
 public:
  /// What a buffer is for. Two slots never share memory; one slot's last tensor is void once the
  /// next is taken.
  enum Slot { kNormed, kQkv, kMlp, kSlots };

  /// A contiguous tensor without values. The slot keeps the largest size that was asked for.
  at::Tensor take(Slot slot, at::IntArrayRef sizes, const at::TensorOptions& options);

 private:
  std::array<at::Tensor, kSlots> memory_;
};

/// The same from `arena`, or a tensor of its own where there is none.
at::Tensor take(Arena* arena, Arena::Slot slot, at::IntArrayRef sizes,
                const at::TensorOptions& options);

}  // namespace cachedit::nn
