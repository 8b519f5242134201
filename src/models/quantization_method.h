// What transformers and diffusers write into config.json of a component with quantized weights.
#pragma once

#include "io/json_config.h"

namespace cachedit::models {

/// Reads "quantization_config". The weights themselves say what they are (nn/linear_weight.h), so
/// its fields do not matter; what matters is whether the method stores weights that are read here:
/// fp8 (transformers' FineGrainedFP8) does, and compressed-tensors does in its formats of one
/// number per value. Throws UnsupportedError for any other method.
void check_quantization_method(io::JsonConfig& json);

}  // namespace cachedit::models
