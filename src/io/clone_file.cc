#include "io/clone_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/fail.h"
#include "io/atomic_file.h"

namespace cachedit::io {
namespace {

namespace fs = std::filesystem;

struct Descriptor {
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  int number;
};

class Source {
 public:
  // Without O_NONBLOCK opening a named pipe would wait for a writer for ever.
  explicit Source(const fs::path& path)
      : path_(path), file_{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)} {
    if (file_.number < 0 || fstat(file_.number, &status_) != 0) refuse(std::strerror(errno));
    if (!S_ISREG(status_.st_mode)) refuse("something that is not a file");
  }

  const struct stat& status() const { return status_; }

  /// Bytes read into the buffer; 0 at the end.
  size_t read(std::string& buffer) const {
    for (;;) {
      const ssize_t count = ::read(file_.number, buffer.data(), buffer.size());
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) refuse(std::strerror(errno));
    }
  }

 private:
  [[noreturn]] void refuse(std::string_view reason) const {
    fail<IoError>(path_.string(), "the file cannot be read: got \"", reason,
                  "\"; grant access to it, or take another copy");
  }

  fs::path path_;
  Descriptor file_;
  struct stat status_ = {};
};

void copy_from(const Source& source, const fs::path& to) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::string buffer(kPiece, '\0');
  AtomicFile file(to);
  while (const size_t count = source.read(buffer)) file.write({buffer.data(), count});
  file.commit();
  std::error_code ignored;  // some file systems have no permissions
  fs::permissions(to, static_cast<fs::perms>(source.status().st_mode) & fs::perms::all, ignored);
}

}  // namespace

void copy_contents(const fs::path& from, const fs::path& to) { copy_from(Source(from), to); }

void clone_file(const fs::path& from, const fs::path& to) {
  constexpr off_t kLarge = off_t{1} << 20;
  const Source source(from);  // a link to what cannot be read would be of no use
  if (source.status().st_size >= kLarge) {
    std::error_code error;
    const fs::path file = fs::canonical(from, error);
    if (!error) fs::create_hard_link(file, to, error);
    if (!error) return;
  }
  copy_from(source, to);
}

}  // namespace cachedit::io
