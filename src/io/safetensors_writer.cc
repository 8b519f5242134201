#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/safetensors_dtype.h"

namespace cachedit::io {
namespace {

using Json = nlohmann::json;

using NamedTensor = std::pair<std::string, at::Tensor>;

/// By falling element size, then name: every tensor is aligned for its dtype, so that readers need
/// no copy.
std::vector<NamedTensor> in_file_order(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> ordered(tensors.begin(), tensors.end());
  const auto size = [](const NamedTensor& t) {
    return t.second.defined() ? t.second.element_size() : 0;
  };
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](const auto& a, const auto& b) { return size(a) > size(b); });
  return ordered;
}

std::string render_header(const std::filesystem::path& path,
                          const std::vector<NamedTensor>& tensors,
                          const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view dtype =
        tensor.defined() ? safetensors_dtype_name(tensor.scalar_type()) : "";
    if (dtype.empty() || name == "__metadata__") {
      fail<UnsupportedError>(
          path.string(), "safetensors cannot hold tensor '", name, "': got ",
          tensor.defined() ? c10::toString(tensor.scalar_type()) : "an undefined tensor",
          "; known dtypes are ", safetensors_dtype_list());
    }
    const uint64_t end = offset + tensor.nbytes();
    header[name] = {
        {"dtype", dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    fail<UnsupportedError>(path.string(), "names and metadata must be UTF-8: got text that is not");
  }
  // Spaces align the data section to 8 bytes, so that readers need no copy.
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<NamedTensor> ordered = in_file_order(tensors);
  const std::string header = render_header(path, ordered, metadata);
  AtomicFile file(path);
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  file.write(length);
  file.write(header);
  for (const auto& [name, tensor] : ordered) {
    const at::Tensor plain = tensor.to(at::kCPU).contiguous();
    file.write({static_cast<const char*>(plain.const_data_ptr()), plain.nbytes()});
  }
  file.commit();
}

}  // namespace cachedit::io
