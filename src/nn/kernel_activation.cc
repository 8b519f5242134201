#include "nn/kernel_activation.h"

namespace cachedit::nn {

std::optional<kernels::Activation> kernel_activation(Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return kernels::Activation::kGeluErf;
    case Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case Activation::kSilu:
      return kernels::Activation::kSilu;
    case Activation::kQuickGelu:
    case Activation::kRelu:
      break;
  }
  return std::nullopt;
}

}  // namespace cachedit::nn
