// One component of a checkpoint, quantized from file to file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "cachedit/quantize.h"
#include "io/weight_store.h"
#include "pipelines/quantize_choice.h"

namespace cachedit::pipelines {

class QuantizedComponent {
 public:
  /// Reads the config and the headers of `component` (of that class) in `source`, and decides what
  /// becomes of each layer by `config`, which `choice` was made of. Throws as loading it would, and
  /// InputError where it is quantized already.
  QuantizedComponent(const std::filesystem::path& source, std::string component,
                     const std::string& class_name, const QuantizeConfig& config,
                     const QuantizeChoice& choice);

  const ComponentQuantization& plan() const { return plan_; }
  const io::WeightStore& store() const { return store_; }

  /// Writes the weights to `folder`, in the source's shards, and quantization_config.json. Needs
  /// the memory of one quantized shard. `on_layer` is called after every quantized layer.
  ComponentQuantization write(const std::filesystem::path& folder,
                              const std::function<void(int64_t done)>& on_layer);

 private:
  void write_shard(const io::SafetensorsFile& file, const std::filesystem::path& folder,
                   const std::function<void(int64_t done)>& on_layer);
  void write_index(const std::filesystem::path& folder) const;

  QuantizeConfig config_;
  io::WeightStore store_;
  ComponentQuantization plan_;
  std::map<std::string, std::string> types_;  // by layer
  std::map<std::string, std::string> shard_of_;
  int64_t total_size_ = 0;
  int64_t done_ = 0;
};

/// Whether a file of a quantized component's folder is replaced, or would be of no use beside it.
bool is_weight_file(const std::filesystem::path& path);

}  // namespace cachedit::pipelines
