// What a checkpoint holds, without loading it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cachedit/export.h"

namespace cachedit {

struct ComponentInfo {
  std::string name;        ///< e.g. "transformer"
  std::string class_name;  ///< e.g. "FluxTransformer2DModel"
  std::string dtype;       ///< of its weights, e.g. "bf16", or "fp32+bf16"; empty without weights
  /// However few bits they have; what only says how weights are quantized does not count.
  int64_t parameters = 0;
  /// By type, e.g. {{"int8_per_row", 104}}: the types that `generate` computes with.
  std::map<std::string, int64_t> quantized_layers;
  int64_t bytes = 0;        ///< of its weights on disk
  std::string blocks;       ///< e.g. "19 double + 38 single"; empty where it has none
  std::string unsupported;  ///< why this version cannot run it; empty when it can
};

struct CheckpointInfo {
  std::string path;
  std::string class_name;   ///< of the pipeline
  std::string unsupported;  ///< why the pipeline as a whole cannot run; empty when it can
  std::vector<ComponentInfo> components;
};

/// `model` as in load_pipeline. Throws IoError or ConfigError when model_index.json is missing or
/// unreadable; trouble with one component is reported in its `unsupported`.
CACHEDIT_API CheckpointInfo inspect_checkpoint(const std::string& model);

}  // namespace cachedit
