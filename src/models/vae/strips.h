// Working through one picture on several ranks: each computes a strip of rows, and talks to the
// others so that nothing differs from the whole. The network is any function here, as in tiling.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "nn/spatial.h"

namespace cachedit::models {

/// Maps this rank's rows [B, C, h, W] of an image or latent to the same rows of its latent or
/// image, all ranks of the shard calling together.
using StripFunction = std::function<at::Tensor(const at::Tensor&, const nn::SpatialShard&)>;

struct StripPlan {
  /// Latent rows. Strips are whole ones; with fewer than ranks, the last ranks only receive.
  int64_t rows = 1;
  /// The whole result [B, C', H', W'], H' a multiple of `rows`.
  std::vector<int64_t> result_shape;
  at::TensorOptions result_options;
};

/// The whole of `function`'s result, on every rank. `x` [B, C, H, W], H a multiple of plan.rows, is
/// whole on every rank, too.
at::Tensor in_strips(const at::Tensor& x, const StripFunction& function, const StripPlan& plan,
                     comm::Communicator& group);

}  // namespace cachedit::models
