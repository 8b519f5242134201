// Copies of files that say which of the two files made trouble.
#pragma once

#include <filesystem>

namespace cachedit::io {

/// Copies bytes and permissions of a plain file, or of what a link leads to. `to` appears whole or
/// not at all. Throws IoError naming the file that cannot be read, or the one that cannot be
/// written, and why.
void copy_contents(const std::filesystem::path& from, const std::filesystem::path& to);

/// As copy_contents(), but from a megabyte on a second name for the same file, where the file
/// system allows it.
void clone_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace cachedit::io
