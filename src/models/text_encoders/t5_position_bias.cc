#include "models/text_encoders/t5_position_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>

#include <cmath>

namespace cachedit::models {

at::Tensor t5_relative_buckets(const at::Tensor& positions, int64_t num_buckets,
                               int64_t max_distance) {
  const int64_t half = num_buckets / 2;
  const int64_t exact = half / 2;
  const at::Tensor distance = positions.abs();
  // The logarithm is fp32 and cut towards zero, in this order of operations: distances that fall
  // on a bucket's edge go by its rounding.
  const double octaves = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor ratio = distance.clamp_min(exact).to(at::kFloat) / exact;
  const at::Tensor grown = (ratio.log() / octaves * (half - exact)).to(at::kLong) + exact;
  const at::Tensor within = at::where(distance < exact, distance, grown.clamp_max(half - 1));
  return within + (positions > 0).to(at::kLong) * half;
}

at::Tensor t5_position_bias(const at::Tensor& table, int64_t tokens, int64_t max_distance) {
  // Only 2 tokens - 1 positions differ: look these up once, then spread them over the square. The
  // buckets are found on the host, so that every device gets the same ones.
  const at::Tensor distinct = at::arange(1 - tokens, tokens, at::kLong);
  const at::Tensor buckets = t5_relative_buckets(distinct, table.size(0), max_distance);
  const at::Tensor by_position = table.index_select(0, buckets.to(table.device())).t().contiguous();

  const at::Tensor index = at::arange(tokens, at::kLong);
  const at::Tensor square = index.unsqueeze(0) - index.unsqueeze(1) + (tokens - 1);
  return by_position.index_select(1, square.flatten().to(table.device()))
      .view({1, table.size(1), tokens, tokens});
}

}  // namespace cachedit::models
