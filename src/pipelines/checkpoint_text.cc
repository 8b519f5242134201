#include "pipelines/checkpoint_text.h"

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "pipelines/checksum.h"

namespace cachedit::pipelines {
namespace {

uint64_t text_checksum(const std::string& text, uint64_t hash = kChecksumStart) {
  return checksum(text.data(), text.size(), hash);
}

uint64_t file_checksum(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return text_checksum(std::string(std::istreambuf_iterator<char>(file), {}));
}

/// Of the bytes at the start, the middle and the end.
uint64_t sample_checksum(const at::Tensor& tensor, uint64_t hash) {
  constexpr size_t kSample = 64;
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  const size_t bytes = tensor.nbytes(), sample = std::min(bytes, kSample);
  for (const size_t begin : {size_t{0}, (bytes - sample) / 2, bytes - sample}) {
    hash = checksum(data + begin, sample, hash);
  }
  return hash;
}

}  // namespace

std::string checkpoint_text(const std::vector<io::WeightStore>& components) {
  std::string text;
  for (const io::WeightStore& store : components) {
    uint64_t header = kChecksumStart, samples = kChecksumStart;
    const std::vector<std::string> names = store.names();
    for (const std::string& name : names) {
      const io::TensorEntry& entry = store.entry(name);
      header = text_checksum(c10::str(name, " ", entry.dtype, " ", at::IntArrayRef(entry.shape)),
                             header);
      samples = sample_checksum(store.tensor(name), samples);
    }
    text += c10::str(store.folder().filename().string(), ": ", names.size(), " tensors, config ",
                     file_checksum(store.folder() / "config.json"), ", header ", header,
                     ", values ", samples, "\n");
  }
  return text;
}

}  // namespace cachedit::pipelines
