// From tensors to the torch-free kernels of src/kernels: pointers, strides, threads, scratch
// memory.
#pragma once

#include "attention/backend.h"
#include "kernels/attention.h"

namespace cachedit::attention {

/// Runs a kernel on inputs that passed contract.h's check(). Tensors whose last dimension is not
/// dense are copied; nothing else is.
Result run_cpu_kernel(kernels::AttentionScheme scheme, CausalAlignment alignment,
                      const Inputs& inputs);

}  // namespace cachedit::attention
