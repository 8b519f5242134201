// Dtypes as the kernels call them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "kernels/element_type.h"

namespace cachedit {

/// fp32, bf16 and fp16; none for any other dtype.
std::optional<kernels::ElementType> element_type(c10::ScalarType dtype);

}  // namespace cachedit
