// The safetensors format: a JSON header with dtype, shape and byte range per tensor, then the data.
// Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::io {

/// One entry of the header, already validated against the file.
struct TensorEntry {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< offset from the start of the data section
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t data_offset = 0;  ///< of the data section from the start of the file
};

/// Parses and validates a header. `bytes` is the start of the file, at least the header where the
/// file is whole; `file_size` the size of the whole file; `where` names it in errors.
/// Throws WeightError, naming the tensor where there is one: not safetensors, header longer than
/// the file (or than 100 MiB), not a JSON object, duplicate names, malformed entry, unknown dtype,
/// negative or overflowing shape, byte range that disagrees with dtype and shape, out of the file,
/// overlapping another one, or leaving a hole.
SafetensorsHeader parse_safetensors_header(std::string_view bytes, uint64_t file_size,
                                           const std::string& where);

/// A memory-mapped file. Tensors share the mapping and keep it alive.
class SafetensorsFile {
 public:
  /// Throws IoError if the file cannot be opened, WeightError as parse_safetensors_header does.
  explicit SafetensorsFile(std::filesystem::path path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }

  /// A tensor over the mapped bytes (copied only where the file misaligns it for its dtype). It
  /// must not be written to. Throws WeightError if there is none of that name.
  at::Tensor tensor(std::string_view name) const;
  /// Gives the memory of whole pages in [data, data + bytes) back, if they are of this file; they
  /// are read again when somebody asks for them.
  void release_pages(const void* data, size_t bytes) const;

 private:
  struct Mapping;
  std::filesystem::path path_;
  std::shared_ptr<Mapping> mapping_;
  SafetensorsHeader header_;
};

/// Writes tensors (any device, made contiguous) to a temporary file, then renames it. Wider dtypes
/// come first, so that every tensor is aligned.
/// Throws IoError naming the path, UnsupportedError for a dtype that the format lacks.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace cachedit::io
