// From what a user typed to a folder on disk.
#pragma once

#include <filesystem>
#include <string>

#include "base/environment.h"

namespace cachedit::io {

/// A folder, as it is; otherwise a hub name "org/name[@revision]" looked up in the local Hugging
/// Face cache ($HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or
/// ~/.cache/huggingface/hub; refs/<revision>, then snapshots/<commit>).
/// Throws IoError; where it is a hub name that is not there, the text gives the command that
/// downloads it.
std::filesystem::path resolve_model_path(const std::string& model,
                                         const Environment& env = environment());

}  // namespace cachedit::io
