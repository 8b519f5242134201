// Short names of dtypes, as options, reports and messages write them.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace cachedit {

/// "fp32", "bf16", "fp16", "fp64", "fp8_e4m3", "fp8_e5m2", or LibTorch's name.
std::string dtype_name(c10::ScalarType dtype);

}  // namespace cachedit
