// All tensors of a safetensors file at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "io/safetensors.h"

namespace cachedit::test {

using Tensors = std::map<std::string, at::Tensor>;

/// By name; they share the mapped file and keep it alive.
inline Tensors read_tensors(const std::filesystem::path& path) {
  const io::SafetensorsFile file(path);
  Tensors tensors;
  for (const auto& [name, entry] : file.header().tensors) tensors[name] = file.tensor(name);
  return tensors;
}

}  // namespace cachedit::test
