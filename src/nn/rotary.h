// Rotary position embedding over several axes (Su et al. 2021, arXiv 2104.09864), as FLUX uses it:
// every axis owns a slice of the head, and neighbouring elements form the rotated pairs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cachedit::nn {

/// cos + i sin of every pair's angle: complex64 [N, D/2], for the joint sequence (text first).
struct RotaryEmbedding {
  at::Tensor freqs;
};

/// `positions` fp32 [N, axes] -> the rotation of every position; axis a turns axes_dims[a] / 2
/// pairs with frequencies theta^(-2i / axes_dims[a]), the angles computed in float64. Throws
/// ConfigError if the axes do not match axes_dims or one of these is odd.
RotaryEmbedding make_rotary(const at::Tensor& positions, const std::vector<int64_t>& axes_dims,
                            double theta = 10000.0);

/// Rotates x [B, N, H, D] of any floating dtype, in fp32 at least.
at::Tensor apply_rotary(const at::Tensor& x, const RotaryEmbedding& rotary);

}  // namespace cachedit::nn
