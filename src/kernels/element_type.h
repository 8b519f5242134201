// The floating-point types that activations are stored in.
#pragma once

namespace cachedit::kernels {

enum class ElementType { kFloat32, kBFloat16, kFloat16 };

}  // namespace cachedit::kernels
