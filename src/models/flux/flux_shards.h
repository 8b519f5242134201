// FLUX's plan of tensor parallelism: which layer is shared out how.
#pragma once

#include <cstdint>
#include <vector>

#include "models/flux/flux_config.h"
#include "nn/shard.h"

namespace cachedit::models {

/// For any number of ranks that divides the heads and the MLP's width.
std::vector<nn::ShardRule> flux_shard_rules(const FluxConfig& config);

/// Throws UnsupportedError naming the numbers, and the sizes that would do, unless `ranks` ranks
/// can share the transformer out.
void check_flux_shards(const FluxConfig& config, int64_t ranks);

}  // namespace cachedit::models
