// Prompt files: plain lines, or JSON lines with settings per picture.
#pragma once

#include <filesystem>
#include <vector>

#include "generate_options.h"

namespace cachedit::cli {

/// Every picture to make, each with `defaults` where its line says nothing. Empty lines and lines
/// that start with '#' are skipped. A file whose first line starts with '{' holds one JSON object a
/// line, its keys named like the command line's options (num_inference_steps or steps, ...).
/// Throws IoError if the file cannot be read, InputError naming the line and the key.
std::vector<ImageSettings> read_prompt_file(const std::filesystem::path& path,
                                            const ImageSettings& defaults);

}  // namespace cachedit::cli
