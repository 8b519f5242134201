// What the text encoders' constructors do with a group of ranks that share the weights out.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/shard.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

/// A number of the config that is shared out.
struct SharedSize {
  std::string_view key;
  int64_t value;
};

/// Throws UnsupportedError, naming the sizes, the ranks and the numbers of ranks that would do,
/// unless every size divides by the group's ranks. `where` is the encoder's class.
void check_encoder_shards(std::string_view where, const std::vector<SharedSize>& sizes,
                          const nn::TensorParallel& parallel);

/// `options` with these rules for its group.
nn::WeightOptions with_rules(nn::WeightOptions options, std::vector<nn::ShardRule> rules);

}  // namespace cachedit::models
