// A folder of files that are of use only together: it appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>

namespace cachedit::pipelines {

/// The absolute path of a folder to make or to fill, outside of `model`: one that is not there, or
/// an empty one. What ended processes left of earlier attempts at the same folder is removed.
/// Throws InputError for another folder, and for a link that leads nowhere.
std::filesystem::path check_new_folder(const std::filesystem::path& wanted,
                                       const std::filesystem::path& model);

/// A temporary folder, removed with all that is in it unless commit() was reached. Where the
/// destination is not there, it lies beside it, and commit() renames it. Where the destination is
/// there, and empty, it lies in it, and commit() moves the files up: a mount point, or somebody's
/// current folder, cannot be replaced.
class WorkFolder {
 public:
  /// `destination` of check_new_folder(). `last`: the file without which the others are nothing,
  /// moved after them. Throws IoError.
  WorkFolder(std::filesystem::path destination, std::string last);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void commit();
  /// `text` with the names that the files are to have.
  std::string in_final_names(std::string text) const;

 private:
  void move_up() const;

  std::filesystem::path destination_;
  std::string last_;
  std::filesystem::path path_;
  bool fills_;
  int lock_ = -1;  // held while this process works in the folder
};

/// Throws it as an IoError that names the path in trouble.
[[noreturn]] void fail_on_disk(const std::filesystem::filesystem_error& error);

/// Calls the file system, whose failures come as fail_on_disk() throws them.
template <class Action>
auto on_disk(const Action& action) {
  try {
    return action();
  } catch (const std::filesystem::filesystem_error& error) {
    fail_on_disk(error);
  }
}

}  // namespace cachedit::pipelines
