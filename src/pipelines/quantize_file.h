// quantization_config.json: what a checkpoint that `cachedit quantize` wrote says of itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cachedit/quantize.h"
#include "io/weight_store.h"
#include "nn/quantization.h"

namespace cachedit::pipelines {

struct StoredQuantization {
  bool found = false;
  int64_t group_size = 64;
  std::map<std::string, nn::QuantType> layers;
};

/// Of a component's folder; not found without the file. A file of another program is ignored with a
/// warning: the weights themselves say what they are. Throws ConfigError for one of ours that is
/// malformed, or does not fit the weights beside it.
StoredQuantization read_stored_quantization(const io::WeightStore& store);

/// The file's text, for layers that were quantized and others with the reason.
std::string stored_quantization_text(const QuantizeConfig& config,
                                     const ComponentQuantization& component);

inline constexpr const char* kQuantizationFile = "quantization_config.json";

}  // namespace cachedit::pipelines
