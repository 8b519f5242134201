// Between 8-bit pictures and the VAE's pixels.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cachedit/image.h"

namespace cachedit::pipelines {

/// fp32 [1, 3, height, width] in [-1, 1].
at::Tensor image_to_pixels(const Image& image);

/// Pixels [B, 3, H, W] around [-1, 1], any dtype and device -> pictures, rounded and clamped as
/// diffusers' image processor does.
std::vector<Image> pixels_to_images(const at::Tensor& pixels);

}  // namespace cachedit::pipelines
