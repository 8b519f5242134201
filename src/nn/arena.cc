#include "nn/arena.h"

#include <ATen/ops/empty.h>

namespace cachedit::nn {

at::Tensor Arena::take(Slot slot, at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor& memory = memory_[slot];
  const int64_t count = c10::multiply_integers(sizes);
  const bool fits = memory.defined() && memory.numel() >= count &&
                    memory.scalar_type() == c10::typeMetaToScalarType(options.dtype()) &&
                    memory.device() == options.device();
  if (!fits) memory = at::empty({count}, options);
  return memory.narrow(0, 0, count).view(sizes);
}

at::Tensor take(Arena* arena, Arena::Slot slot, at::IntArrayRef sizes,
                const at::TensorOptions& options) {
  return arena == nullptr ? at::empty(sizes, options) : arena->take(slot, sizes, options);
}

}  // namespace cachedit::nn
