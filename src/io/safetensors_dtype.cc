#include "io/safetensors_dtype.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cachedit::io {
namespace {

constexpr std::pair<std::string_view, at::ScalarType> kDtypes[] = {
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"U16", at::kUInt16},
    {"I16", at::kShort},
    {"U32", at::kUInt32},
    {"I32", at::kInt},
    {"U64", at::kUInt64},
    {"I64", at::kLong},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F32", at::kFloat},
    {"F64", at::kDouble},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
};

/// Of the format, and of no use here.
constexpr std::string_view kUnsupported[] = {"F4",          "F6_E2M3",     "F6_E3M2", "F8_E8M0",
                                             "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"};

}  // namespace

bool is_unsupported_safetensors_dtype(std::string_view name) {
  return std::find(std::begin(kUnsupported), std::end(kUnsupported), name) !=
         std::end(kUnsupported);
}

std::optional<at::ScalarType> parse_safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) return name;
  }
  return "";
}

std::string safetensors_dtype_list() {
  std::string list;
  for (const auto& [name, dtype] : kDtypes) {
    if (!list.empty()) list += ' ';
    list += name;
  }
  return list;
}

}  // namespace cachedit::io
