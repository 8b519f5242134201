// FLUX's latents: noise, and the packing of 2 x 2 patches into tokens.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cachedit::pipelines {

/// A CPU generator in the state of torch.Generator("cpu").manual_seed(seed).
at::Generator make_generator(uint64_t seed);

/// Standard normal noise of `shape`, drawn on the CPU and moved: the same numbers on every device.
at::Tensor draw_noise(at::IntArrayRef shape, at::Generator& generator, at::ScalarType dtype,
                      at::Device device);

/// [B, C, H, W] -> [B, H/2 * W/2, 4C].
at::Tensor pack_latents(const at::Tensor& latents);

/// [B, grid_height * grid_width, 4C] -> [B, C, 2 * grid_height, 2 * grid_width].
at::Tensor unpack_latents(const at::Tensor& packed, int64_t grid_height, int64_t grid_width);

}  // namespace cachedit::pipelines
