#include "support/tiny_weights.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/safetensors.h"
#include "support/temp_dir.h"

namespace cachedit::test {
namespace {

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

uint64_t splitmix64(uint64_t state) {
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

at::Tensor tiny_weight(std::string_view name, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  const int64_t count = tensor.numel();
  double offset = 0, scale = 0.1;
  if (shape.size() >= 2) {
    scale = std::sqrt(3.0 / static_cast<double>(count / shape[0]));
  } else if (name.ends_with("weight")) {
    offset = 1, scale = 0.2;
  }
  const uint64_t seed = fnv1a(name);
  float* out = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = splitmix64(seed + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
    const double u = static_cast<double>(bits >> 40) / 8388608.0 - 1.0;
    out[i] = static_cast<float>(offset + scale * u);
  }
  return tensor;
}

void write_tiny_weights(const std::filesystem::path& shapes_json,
                        const std::filesystem::path& folder, std::string_view file_name,
                        at::ScalarType dtype) {
  const nlohmann::json shapes = nlohmann::json::parse(read_bytes(shapes_json));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, shape] : shapes.items()) {
    tensors[name] = tiny_weight(name, shape.get<std::vector<int64_t>>()).to(dtype);
  }
  io::write_safetensors(folder / file_name, tensors);
}

void make_tiny_checkpoint(std::string_view name, const std::filesystem::path& destination) {
  const std::filesystem::path source = golden(name) / "checkpoint";
  std::filesystem::create_directories(destination);
  std::filesystem::copy(source, destination, std::filesystem::copy_options::recursive);
  for (const auto& item : std::filesystem::recursive_directory_iterator(source)) {
    if (item.path().filename() != "tensors.json") continue;
    const std::filesystem::path folder =
        destination / std::filesystem::relative(item.path().parent_path(), source);
    const bool transformers = folder.filename().string().starts_with("text_encoder");
    write_tiny_weights(item.path(), folder,
                       transformers ? "model.safetensors" : "diffusion_pytorch_model.safetensors");
    std::filesystem::remove(folder / "tensors.json");
  }
  // Goldens leave out the tokenizers: they use the demo model's.
  for (const char* tokenizer : {"tokenizer", "tokenizer_2"}) {
    if (!std::filesystem::exists(source / "model_index.json")) break;
    if (std::filesystem::exists(destination / tokenizer)) continue;
    std::filesystem::copy(demo_model() / tokenizer, destination / tokenizer,
                          std::filesystem::copy_options::recursive);
  }
}

}  // namespace cachedit::test
