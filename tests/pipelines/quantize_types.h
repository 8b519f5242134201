// The names of all quantize types.
#pragma once

namespace cachedit::test {

inline constexpr const char* kQuantizeTypes[] = {
    "int8_per_row",   "int8_per_tensor",   "int8_weight_only", "int4_weight_only",
    "float8_per_row", "float8_per_tensor", "float8_per_block", "float8_weight_only"};

}  // namespace cachedit::test
