// How much memory a component's weights take once they are loaded, from the headers of its files.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "io/weight_store.h"
#include "nn/quantization.h"

namespace cachedit::pipelines {

struct WeightSizes {
  int64_t parameters = 0;
  int64_t bytes = 0;  ///< scales included
  /// What most weights of linear layers are quantized to, if most of them are.
  std::optional<nn::QuantType> type;
};

/// `layers` are all linear layers as loading in `dtype` reports them; empty: weights stay as they
/// are stored, the floating-point ones in `dtype`.
WeightSizes weight_sizes(const io::WeightStore& store, c10::ScalarType dtype,
                         const std::vector<nn::QuantizedLayer>& layers = {},
                         int64_t group_size = 64);

}  // namespace cachedit::pipelines
