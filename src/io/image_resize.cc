#include "io/image_resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/fail.h"

namespace cachedit::io {
namespace {

constexpr double kSupport = 3.0;
constexpr int kPrecisionBits = 32 - 8 - 2;  // 8-bit samples, and room for the sum's sign

double sinc(double x) {
  if (x == 0.0) return 1.0;
  const double t = x * std::numbers::pi;
  return std::sin(t) / t;
}

double lanczos(double x) {
  return -kSupport <= x && x < kSupport ? sinc(x) * sinc(x / kSupport) : 0.0;
}

/// The source samples [first, first + weights.size()) that make one output sample.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;
};

std::vector<Taps> make_taps(int64_t in_size, int64_t out_size) {
  const double scale = static_cast<double>(in_size) / static_cast<double>(out_size);
  const double filter_scale = std::max(scale, 1.0);
  const double reach = kSupport * filter_scale;
  std::vector<Taps> taps(static_cast<size_t>(out_size));
  std::vector<double> weights;
  for (int64_t i = 0; i < out_size; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + reach + 0.5), in_size);
    weights.clear();
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      weights.push_back(lanczos((static_cast<double>(x) - center + 0.5) / filter_scale));
      sum += weights.back();
    }
    Taps& tap = taps[static_cast<size_t>(i)];
    tap.first = first;
    for (const double weight : weights) {
      const double fixed = (sum != 0 ? weight / sum : weight) * (1 << kPrecisionBits);
      tap.weights.push_back(static_cast<int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
    }
  }
  return taps;
}

/// One output sample from inputs `stride` bytes apart.
uint8_t filter(const Taps& taps, const uint8_t* samples, int64_t stride) {
  int32_t sum = 1 << (kPrecisionBits - 1);
  const uint8_t* sample = samples + taps.first * stride;
  for (const int32_t weight : taps.weights) {
    sum += weight * *sample;
    sample += stride;
  }
  return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}

Image resize_across(const Image& in, int64_t width) {
  Image out{.width = width, .height = in.height, .pixels = {}};
  out.pixels.resize(static_cast<size_t>(width * in.height * 3));
  const std::vector<Taps> taps = make_taps(in.width, width);
  uint8_t* to = out.pixels.data();
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = in.pixels.data() + y * in.width * 3;
    for (const Taps& tap : taps) {
      for (int64_t c = 0; c < 3; ++c) *to++ = filter(tap, row + c, 3);
    }
  }
  return out;
}

Image resize_down(const Image& in, int64_t height) {
  Image out{.width = in.width, .height = height, .pixels = {}};
  const int64_t row = in.width * 3;
  out.pixels.resize(static_cast<size_t>(row * height));
  uint8_t* to = out.pixels.data();
  for (const Taps& tap : make_taps(in.height, height)) {
    for (int64_t x = 0; x < row; ++x) *to++ = filter(tap, in.pixels.data() + x, row);
  }
  return out;
}

}  // namespace

Image resize_lanczos(const Image& image, int64_t width, int64_t height) {
  if (width < 1 || height < 1 || image.width < 1 || image.height < 1) {
    fail<InputError>("resize", "sizes must be at least 1 x 1: got ", image.width, " x ",
                     image.height, " to ", width, " x ", height);
  }
  const auto across = [&](const Image& in) {
    return in.width == width ? in : resize_across(in, width);
  };
  const auto down = [&](const Image& in) {
    return in.height == height ? in : resize_down(in, height);
  };
  // Pillow runs the pass that shrinks the picture most first; the samples between the passes are
  // rounded, so the order shows.
  const bool down_first =
      height < image.height && image.height - height > 2 * (image.width - width);
  return down_first ? across(down(image)) : down(across(image));
}

}  // namespace cachedit::io
