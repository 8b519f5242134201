#include "base/dtype_name.h"

namespace cachedit {

std::string dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return "fp32";
    case c10::kBFloat16:
      return "bf16";
    case c10::kHalf:
      return "fp16";
    case c10::kDouble:
      return "fp64";
    case c10::kChar:
      return "int8";
    case c10::kByte:
      return "uint8";
    case c10::kFloat8_e4m3fn:
      return "fp8_e4m3";
    case c10::kFloat8_e5m2:
      return "fp8_e5m2";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace cachedit
