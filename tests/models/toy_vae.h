// A toy VAE that works on every position alone: whatever is done in pieces must give what the whole
// gives.
#pragma once

#include <ATen/ops/conv2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include "support/tiny_weights.h"

namespace cachedit::test {

inline constexpr int64_t kToyScale = 8;

/// 1x1 convolution, then nearest upsampling: 4 latent channels -> 3.
inline at::Tensor toy_decode(const at::Tensor& latents) {
  const at::Tensor pixels = at::conv2d(latents, tiny_weight("decode.weight", {3, 4, 1, 1}),
                                       tiny_weight("decode.bias", {3}));
  return at::upsample_nearest2d(pixels, {kToyScale * pixels.size(2), kToyScale * pixels.size(3)});
}

/// Every eighth pixel, then a 1x1 convolution: 3 channels -> mean and log-variance of 4.
inline at::Tensor toy_encode(const at::Tensor& pixels) {
  return at::conv2d(
      pixels.slice(2, 0, std::nullopt, kToyScale).slice(3, 0, std::nullopt, kToyScale),
      tiny_weight("encode.weight", {8, 3, 1, 1}), tiny_weight("encode.bias", {8}));
}

}  // namespace cachedit::test
