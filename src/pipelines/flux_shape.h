// FLUX's transformer as the cost model of parallel layouts sees it.
#pragma once

#include <cstdint>

#include "models/flux/flux_config.h"
#include "parallel/cost_model.h"

namespace cachedit::pipelines {

/// `parameters`: elements of all its weights.
parallel::TransformerShape flux_shape(const models::FluxConfig& config, int64_t parameters);

}  // namespace cachedit::pipelines
