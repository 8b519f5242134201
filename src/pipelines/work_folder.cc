#include "pipelines/work_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/fail.h"

namespace cachedit::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "quantize";
constexpr std::string_view kPrefix = ".cachedit-";

/// What follows the process in the names of temporary folders for `destination`.
std::string ending_for(const fs::path& destination) {
  constexpr size_t kLongest = 200;  // of the 255 bytes that a name may have
  const std::string name = destination.filename().string();
  size_t end = std::min(name.size(), kLongest);
  while (end < name.size() && end > 0 && (name[end] & 0xC0) == 0x80) --end;  // whole characters
  return c10::str("-quantize-", name.substr(0, end), ".tmp");
}

/// The process in the name of a temporary folder; 0: the name is another one.
pid_t process_of(std::string_view name, std::string_view ending) {
  if (!name.starts_with(kPrefix) || !name.ends_with(ending)) return 0;
  if (name.size() <= kPrefix.size() + ending.size()) return 0;
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - ending.size());
  pid_t process = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), process);
  return error == std::errc() && end == digits.data() + digits.size() && process > 0 ? process : 0;
}

/// Holds the folder, where the file system allows that. -1: it does not, or another one does
/// (`held`).
int lock_folder(const fs::path& folder, bool& held) {
  held = false;
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0 || flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  held = errno == EWOULDBLOCK;
  close(descriptor);
  return -1;
}

/// A process of that number may have ended long ago, or run in another container.
bool is_abandoned(const fs::path& folder, pid_t process) {
  if (process != getpid() && (kill(process, 0) == 0 || errno != ESRCH)) return false;
  bool held = false;
  const int lock = lock_folder(folder, held);
  if (lock >= 0) close(lock);
  return !held;
}

/// Removes what ended processes left in `folder` of their work for `destination`.
void remove_abandoned(const fs::path& folder, const fs::path& destination) {
  std::error_code error;
  std::vector<fs::path> abandoned;
  const std::string ending = ending_for(destination);
  for (fs::directory_iterator item(folder, error), end; !error && item != end;
       item.increment(error)) {
    const pid_t process = process_of(item->path().filename().string(), ending);
    std::error_code ignored;
    if (process == 0 || item->symlink_status(ignored).type() != fs::file_type::directory) continue;
    if (is_abandoned(item->path(), process)) abandoned.push_back(item->path());
  }
  for (const fs::path& path : abandoned) fs::remove_all(path, error);
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

/// Of the path or of the folders above it: nothing can be made there.
void refuse_dead_links(const fs::path& path) {
  for (fs::path link = path; link != link.root_path(); link = link.parent_path()) {
    if (!fs::is_symlink(link) || fs::exists(link)) continue;
    fail<InputError>(kWhere, "the new folder must not lie behind a link that leads nowhere: got ",
                     link.string(), ", a link to ", fs::read_symlink(link).string(),
                     "; make that folder, or choose another --save-path");
  }
}

[[noreturn]] void refuse(const fs::path& path, const std::error_code& error) {
  fail<IoError>(path.string(), "the file system refused: got \"", error.message(),
                "\"; make room or grant access there, or choose another place");
}

}  // namespace

void fail_on_disk(const fs::filesystem_error& error) {
  refuse(error.path2().empty() ? error.path1() : error.path2(), error.code());
}

fs::path check_new_folder(const fs::path& wanted, const fs::path& model) {
  if (wanted.empty()) fail<InputError>(kWhere, "--save-path must name a folder: got ''");
  return on_disk([&] {
    fs::path given = fs::absolute(wanted);
    if (!given.has_filename()) given = given.parent_path();  // "folder/"
    refuse_dead_links(given);
    fs::path out = fs::weakly_canonical(given);
    if (!out.has_filename()) out = out.parent_path();  // "folder/."
    if (is_inside(out, fs::canonical(model))) {
      fail<InputError>(kWhere, "the new folder must lie outside of the model's: got ", out.string(),
                       "; choose another --save-path");
    }
    constexpr const char* kAdvice = "; choose another --save-path, or remove what is there";
    if (fs::exists(out) && !fs::is_directory(out)) {
      fail<InputError>(kWhere, "the new folder must be empty or not there yet: got ", out.string(),
                       ", a file", kAdvice);
    }
    remove_abandoned(out.parent_path(), out);
    if (!fs::exists(out)) return out;
    remove_abandoned(out, out);
    const fs::directory_iterator first(out);
    if (first != fs::directory_iterator()) {
      fail<InputError>(kWhere, "the new folder must be empty or not there yet: got ", out.string(),
                       ", which holds ", first->path().filename().string(), kAdvice);
    }
    return out;
  });
}

WorkFolder::WorkFolder(fs::path destination, std::string last)
    : destination_(std::move(destination)), last_(std::move(last)) {
  std::error_code error;
  fills_ = on_disk([&] { return fs::exists(destination_); });
  const fs::path place = fills_ ? destination_ : destination_.parent_path();
  fs::create_directories(place, error);
  if (error) refuse(place, error);
  path_ = place / c10::str(kPrefix, getpid(), ending_for(destination_));
  if (!fs::create_directory(path_, error)) {
    if (error) refuse(place, error);
    fail<IoError>(path_.string(),
                  "another process is making the same folder; choose another "
                  "--save-path, or remove this one if none does");
  }
  bool held = false;
  lock_ = lock_folder(path_, held);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

void WorkFolder::commit() {
  on_disk([&] {
    if (fills_) {
      move_up();
      fs::remove(path_);
    } else {
      fs::rename(path_, destination_);
    }
  });
  path_.clear();
}

void WorkFolder::move_up() const {
  std::vector<fs::path> names;
  for (const auto& item : fs::directory_iterator(path_)) {
    if (item.path().filename() != last_) names.push_back(item.path().filename());
  }
  if (fs::exists(path_ / last_)) names.push_back(last_);
  size_t moved = 0;
  try {
    for (; moved < names.size(); ++moved) {
      fs::rename(path_ / names[moved], destination_ / names[moved]);
    }
  } catch (const fs::filesystem_error&) {
    std::error_code ignored;
    while (moved-- > 0) fs::rename(destination_ / names[moved], path_ / names[moved], ignored);
    throw;
  }
}

std::string WorkFolder::in_final_names(std::string text) const {
  const std::string path = path_.string();
  for (size_t at = 0; !path.empty() && (at = text.find(path, at)) != std::string::npos;) {
    text.replace(at, path.size(), destination_.string());
    at += destination_.native().size();
  }
  return text;
}

}  // namespace cachedit::pipelines
