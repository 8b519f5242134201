// All tensors of one component: a single safetensors file, or shards listed by an index.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace cachedit::io {

class WeightStore {
 public:
  /// Opens the weights in `folder`: "<base>.safetensors" or "<base>.safetensors.index.json" with
  /// base "diffusion_pytorch_model" or "model". With both present, the index wins for the former
  /// and the single file for the latter, as in diffusers and in transformers, with a warning.
  /// Throws IoError if there is neither (naming pickle files found instead: only safetensors are
  /// read), WeightError listing every absent shard, every shard name that leaves the folder, and
  /// every tensor that the index promises and its shard lacks. Tensors in a shard that the index
  /// does not list are left out with a warning.
  static WeightStore open(const std::filesystem::path& folder);

  bool contains(std::string_view name) const;
  /// Throws WeightError if there is none of that name.
  const TensorEntry& entry(std::string_view name) const;
  /// Shares the mapped file; see SafetensorsFile::tensor.
  at::Tensor tensor(std::string_view name) const;
  /// Gives memory back that holds bytes of the files under `tensor`; they stay readable.
  void release_pages(const at::Tensor& tensor) const;
  /// Every tensor's name, sorted.
  std::vector<std::string> names() const;

  /// The files that hold tensors, and the one that holds this tensor.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const SafetensorsFile& file_of(std::string_view name) const;

  /// Stored dtype of the first floating-point tensor of 16 bits or more that is no scale (by name):
  /// that of quantized checkpoints' other tensors. Without one bfloat16 if there is float8, else
  /// float32.
  at::ScalarType floating_dtype() const;

  int64_t parameters() const;
  int64_t bytes() const;
  /// The folder, for error texts.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // tensor name -> index into files_
};

}  // namespace cachedit::io
