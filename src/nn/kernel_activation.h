// Activations as the kernels know them.
#pragma once

#include <optional>

#include "kernels/gemm.h"
#include "nn/activation.h"

namespace cachedit::nn {

/// None for those that no kernel has.
std::optional<kernels::Activation> kernel_activation(Activation activation);

}  // namespace cachedit::nn
