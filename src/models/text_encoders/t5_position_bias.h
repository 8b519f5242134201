// T5's relative position bias: what attention adds to its scores, by the distance of two tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cachedit::models {

/// The bucket of each relative position (key minus query) in `positions`, int64 of any shape, for
/// attention in both directions. Half of the buckets are for keys behind the query and half for
/// those after it; within a half, small distances have one each and larger ones share, on a
/// logarithmic scale up to max_distance.
at::Tensor t5_relative_buckets(const at::Tensor& positions, int64_t num_buckets,
                               int64_t max_distance);

/// `table` [buckets, heads] -> [1, heads, tokens, tokens], contiguous, in the table's dtype.
at::Tensor t5_position_bias(const at::Tensor& table, int64_t tokens, int64_t max_distance);

}  // namespace cachedit::models
