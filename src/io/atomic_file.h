// Output files appear whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace cachedit::io {

/// A temporary file beside its destination, which commit() renames into place and the destructor
/// removes when commit() was not reached.
class AtomicFile {
 public:
  /// Creates the temporary file. Throws IoError naming `destination` and the system's reason
  /// (absent folder, no permission, destination is a folder).
  explicit AtomicFile(std::filesystem::path destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws IoError (disk full and the like).
  void write(std::string_view bytes);
  /// Flushes and renames. Throws IoError.
  void commit();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

/// Throws IoError unless a file of that name can be created. Leaves nothing behind. Used to refuse
/// an unwritable destination before the work starts.
void check_writable(const std::filesystem::path& destination);

}  // namespace cachedit::io
