// The JSON file of the linear calibrator's coefficients, which `cachedit tune` writes beside a
// configuration.
#pragma once

#include <filesystem>

#include "cache/calibrators/linear.h"

namespace cachedit::pipelines {

/// Throws IoError if the file cannot be read; ConfigError naming file and item for a wrong type, an
/// unknown key, a step outside 0..num_inference_steps - 1, or weights that do not fit the steps
/// that they are for.
cache::LinearTable read_linear_table(const std::filesystem::path& path);

/// Writes the file whole or not at all; what read_linear_table() reads back is equal, bit by bit.
/// Throws IoError.
void write_linear_table(const std::filesystem::path& path, const cache::LinearTable& table);

}  // namespace cachedit::pipelines
