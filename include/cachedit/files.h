// Output files that appear whole or not at all.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "cachedit/export.h"

namespace cachedit {

/// Throws IoError naming the path unless a file can be written there; leaves nothing behind. Asked
/// before long work, so that its result has a place to go.
CACHEDIT_API void check_writable(const std::filesystem::path& path);

/// Writes to a temporary name in the same folder and renames. Throws IoError naming the path.
CACHEDIT_API void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Writes tensors as a safetensors file, in the same manner.
CACHEDIT_API void write_tensors(const std::filesystem::path& path,
                                const std::map<std::string, at::Tensor>& tensors,
                                const std::map<std::string, std::string>& metadata = {});

}  // namespace cachedit
