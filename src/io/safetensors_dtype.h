// The element types of the safetensors format, both ways.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace cachedit::io {

/// std::nullopt for a name that the format, or LibTorch, does not have.
std::optional<at::ScalarType> parse_safetensors_dtype(std::string_view name);

/// Whether the format has the name, and LibTorch or this library no use for it.
bool is_unsupported_safetensors_dtype(std::string_view name);

/// Empty for a type that the format lacks.
std::string_view safetensors_dtype_name(at::ScalarType dtype);

/// All names, for error texts.
std::string safetensors_dtype_list();

}  // namespace cachedit::io
