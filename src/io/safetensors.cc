#include "io/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.h"

namespace cachedit::io {

struct SafetensorsFile::Mapping {
  explicit Mapping(const std::filesystem::path& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data), size}; }

  void* data = nullptr;
  size_t size = 0;
};

SafetensorsFile::Mapping::Mapping(const std::filesystem::path& path) {
  const auto refuse = [&path](std::string_view reason) {
    fail<IoError>(path.string(), "the weights cannot be read: got \"", reason, "\"");
  };
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) close(number);
    }
  };
  // Without O_NONBLOCK opening a named pipe would wait for a writer for ever.
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) refuse(std::strerror(errno));
  struct stat status = {};
  if (fstat(file.number, &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse("something that is not a file");
  size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses it; the header check has the better text
  data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (data == MAP_FAILED) refuse(std::strerror(errno));
  // Small files are read at once. Large ones load page by page as layers ask for them, so that a
  // file larger than memory does not push itself out.
  constexpr size_t kReadAhead = size_t{256} << 20;
  if (size <= kReadAhead) madvise(data, size, MADV_WILLNEED);
}

SafetensorsFile::Mapping::~Mapping() {
  if (data != nullptr) munmap(data, size);
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)),
      mapping_(std::make_shared<Mapping>(path_)),
      header_(parse_safetensors_header(mapping_->bytes(), mapping_->size, path_.string())) {}

at::Tensor SafetensorsFile::tensor(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    fail<WeightError>(path_.string(), "no such tensor: got '", name, "'");
  }
  const TensorEntry& entry = found->second;
  const size_t bytes = entry.end - entry.begin;
  char* start = static_cast<char*>(mapping_->data) + header_.data_offset + entry.begin;
  const bool aligned = reinterpret_cast<uintptr_t>(start) % c10::elementSize(entry.dtype) == 0;
  if (aligned && bytes != 0) {
    return at::from_blob(
        start, entry.shape, [mapping = mapping_](void*) {}, at::dtype(entry.dtype));
  }
  at::Tensor copy = at::empty(entry.shape, at::dtype(entry.dtype));
  if (bytes != 0) std::memcpy(copy.mutable_data_ptr(), start, bytes);
  return copy;
}

void SafetensorsFile::release_pages(const void* data, size_t bytes) const {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto file = reinterpret_cast<uintptr_t>(mapping_->data);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (begin < file || begin + bytes > file + mapping_->size) return;
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace cachedit::io
