#include "base/element_type.h"

namespace cachedit {

std::optional<kernels::ElementType> element_type(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Float) return kernels::ElementType::kFloat32;
  if (dtype == c10::ScalarType::BFloat16) return kernels::ElementType::kBFloat16;
  if (dtype == c10::ScalarType::Half) return kernels::ElementType::kFloat16;
  return std::nullopt;
}

}  // namespace cachedit
