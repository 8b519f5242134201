// Text encoder checkpoints of the goldens, opened for a test and open to alteration.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "io/json_config.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "support/temp_dir.h"
#include "support/tensor_file.h"
#include "support/tiny_weights.h"

namespace cachedit::models {

using test::read_tensors;
using test::Tensors;

/// What the peer computed, by "<case>.<tensor>".
inline Tensors read_expected(std::string_view name) {
  return read_tensors(test::golden(name) / "expected.safetensors");
}

/// A config given as JSON text.
inline io::JsonConfig json_config(std::string_view text) {
  return io::JsonConfig(nlohmann::json::parse(text), "config.json");
}

/// The checkpoint of a golden, in a folder of its own.
class TinyCheckpoint {
 public:
  TinyCheckpoint(std::string_view name, std::string_view component)
      : folder_(root_ / "checkpoint" / component) {
    test::make_tiny_checkpoint(name, root_ / "checkpoint");
  }

  template <class Config>
  Config config() const {
    io::JsonConfig json = io::JsonConfig::read(folder_ / "config.json");
    return Config::parse(json);
  }
  io::WeightStore store() const { return io::WeightStore::open(folder_); }

  Tensors tensors() const { return read_tensors(folder_ / "model.safetensors"); }
  void replace(const Tensors& tensors) const {
    io::write_safetensors(folder_ / "model.safetensors", tensors);
  }

 private:
  test::TempDir root_;
  std::filesystem::path folder_;
};

}  // namespace cachedit::models
