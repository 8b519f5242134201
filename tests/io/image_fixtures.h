// Pictures that follow from a formula; tests/goldens/make_image_metrics.py states the same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cachedit/image.h"

namespace cachedit::io {

inline Image wave_image(int64_t width, int64_t height) {
  Image image{width, height, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t wave = (x * 9 + y * 5 + c * 60 + x * y / 4) % 510;
        image.pixels.push_back(static_cast<uint8_t>(wave < 256 ? wave : 510 - wave));
      }
    }
  }
  return image;
}

inline Image with_noise(Image image, int64_t amplitude) {
  uint32_t state = 12345;
  for (uint8_t& sample : image.pixels) {
    state = state * 1664525 + 1013904223;
    const int64_t noise = int64_t{state >> 16} % (2 * amplitude + 1) - amplitude;
    sample = static_cast<uint8_t>(std::clamp<int64_t>(sample + noise, 0, 255));
  }
  return image;
}

}  // namespace cachedit::io
