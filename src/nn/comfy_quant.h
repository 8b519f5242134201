// What ComfyUI's files say of a quantized layer beside its tensors: JSON in a tensor "comfy_quant",
// or in the metadata of the file. The numbers themselves are read by linear_weight.h.
#pragma once

#include <map>
#include <string>

#include "io/weight_store.h"
#include "nn/weight_scope.h"

namespace cachedit::nn {

/// JSON text by layer, from the entry "_quantization_metadata" of the files' metadata. Throws
/// ConfigError naming the file where it is malformed.
std::map<std::string, std::string> described_layers(const io::WeightStore& store);

/// Reads what is said of the layer of `scope`, if anything. Throws UnsupportedError naming the
/// tensor for formats whose numbers mean something else than this version takes them for, also if
/// types and shapes would fit; WeightError where the weight is not of the format's type;
/// ConfigError for malformed text and for keys that may change the numbers' meaning.
void check_comfy_quant(const WeightScope& scope);

}  // namespace cachedit::nn
