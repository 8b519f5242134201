#include "cachedit/files.h"

#include "io/atomic_file.h"
#include "io/safetensors.h"

namespace cachedit {

void check_writable(const std::filesystem::path& path) { io::check_writable(path); }

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  io::AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_tensors(const std::filesystem::path& path,
                   const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata) {
  io::write_safetensors(path, tensors, metadata);
}

}  // namespace cachedit
