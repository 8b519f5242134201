// VAE checkpoints of the goldens and the demo model, opened for a test.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "io/json_config.h"
#include "io/safetensors.h"
#include "io/weight_store.h"
#include "models/vae/autoencoder_kl.h"
#include "support/temp_dir.h"
#include "support/tensor_file.h"
#include "support/tiny_weights.h"

namespace cachedit::models {

using test::read_tensors;
using test::Tensors;

inline AutoencoderKl load_vae(const std::filesystem::path& folder,
                              const nn::WeightOptions& options = {}) {
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  return AutoencoderKl(AutoencoderKlConfig::parse(json), io::WeightStore::open(folder), options);
}

inline AutoencoderKl load_demo_vae(at::ScalarType dtype = at::kFloat) {
  return load_vae(test::demo_model() / "vae", {.dtype = dtype});
}

/// The checkpoint of a golden, in a folder of its own, and what diffusers computed with it.
class TinyVae {
 public:
  explicit TinyVae(std::string_view name)
      : folder_(root_ / "checkpoint/vae"),
        expected_(read_tensors(test::golden(name) / "expected.safetensors")) {
    test::make_tiny_checkpoint(name, root_ / "checkpoint");
  }

  AutoencoderKl load(const nn::WeightOptions& options = {}) const {
    return load_vae(folder_, options);
  }
  const at::Tensor& expected(const std::string& name) const { return expected_.at(name); }

  Tensors tensors() const { return read_tensors(weights()); }
  void replace(const Tensors& tensors) const { io::write_safetensors(weights(), tensors); }

 private:
  std::filesystem::path weights() const { return folder_ / "diffusion_pytorch_model.safetensors"; }

  test::TempDir root_;
  std::filesystem::path folder_;
  Tensors expected_;
};

}  // namespace cachedit::models
