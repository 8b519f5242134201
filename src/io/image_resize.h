// Resampling of pictures, as diffusers' image processor does it through PIL.
#pragma once

#include <cstdint>

#include "cachedit/image.h"

namespace cachedit::io {

/// Lanczos-3 with antialiasing in PIL's fixed-point arithmetic: equal to the bit to
/// Image.resize((width, height), LANCZOS) of Pillow 13. Returns a copy when the size is the same.
/// Throws InputError unless both sizes are at least 1.
Image resize_lanczos(const Image& image, int64_t width, int64_t height);

}  // namespace cachedit::io
