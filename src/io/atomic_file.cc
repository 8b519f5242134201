#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "base/fail.h"

namespace cachedit::io {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& destination, std::string_view reason) {
  fail<IoError>(destination.string(), "the file cannot be written: got \"", reason,
                "\"; choose another path, or make room or grant access there");
}

/// The file that a rename should replace. A link is followed, as a plain write would do.
fs::path check_destination(const fs::path& destination) {
  if (destination.empty()) refuse(destination, "an empty path");
  std::error_code error;
  const fs::file_status status = fs::status(destination, error);
  if (fs::is_directory(status) || !destination.has_filename()) refuse(destination, "a folder");
  if (!fs::status_known(status)) refuse(destination, error.message());
  if (!fs::exists(status)) return destination;
  // Renaming over a device such as /dev/null would replace it for the whole machine.
  if (!fs::is_regular_file(status)) refuse(destination, "something that is not a plain file");
  if (!fs::is_symlink(destination, error)) return destination;
  fs::path target = fs::canonical(destination, error);
  if (error) refuse(destination, error.message());
  return target;
}

}  // namespace

AtomicFile::AtomicFile(fs::path destination) : destination_(check_destination(destination)) {
  // The name is short and free of the destination's, which may already be as long as names get.
  constexpr int kAttempts = 10000;
  for (int i = 0; i < kAttempts; ++i) {
    temporary_ = destination_.parent_path() / c10::str(".cachedit-", getpid(), "-", i, ".tmp");
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) return;
    if (errno != EEXIST) break;
  }
  const int reason = errno;
  const fs::path folder = destination_.parent_path();
  if (std::error_code ignored; !folder.empty() && !fs::exists(folder, ignored)) {
    refuse(destination_, c10::str("no such folder: ", folder.string()));
  }
  refuse(destination_, std::strerror(reason));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      refuse(destination_, std::strerror(errno));
    }
  }
}

void AtomicFile::commit() {
  // Network file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) refuse(destination_, std::strerror(errno));
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0) {
    refuse(destination_, std::strerror(errno));
  }
  temporary_.clear();
}

void check_writable(const fs::path& destination) { const AtomicFile probe(destination); }

}  // namespace cachedit::io
