// A folder that lives as long as a test.
#pragma once

#include <filesystem>
#include <string_view>

namespace cachedit::test {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  /// Writes a file, making its folders, and returns its path.
  std::filesystem::path write(std::string_view name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

/// The whole file as bytes.
std::string read_bytes(const std::filesystem::path& path);

/// The checkout's root.
std::filesystem::path source_dir();
/// tests/goldens/<name>
std::filesystem::path golden(std::string_view name);
/// The shipped checkpoint.
std::filesystem::path demo_model();

}  // namespace cachedit::test
