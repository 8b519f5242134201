#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/fail.h"
#include "cachedit/image.h"
#include "io/image_codec.h"

namespace cachedit {
namespace {

constexpr double kPeak = 255;
constexpr int64_t kChannels = 3;
constexpr int64_t kWindow = 7;
constexpr double kC1 = (0.01 * kPeak) * (0.01 * kPeak);
constexpr double kC2 = (0.03 * kPeak) * (0.03 * kPeak);

// Sums over a window of at most 49 samples: exact in 32 bits (49 * 255 * 255 < 2^22).
struct Sums {
  int32_t a = 0, b = 0, aa = 0, bb = 0, ab = 0;

  void add(int32_t x, int32_t y, int32_t sign) {
    a += sign * x;
    b += sign * y;
    aa += sign * x * x;
    bb += sign * y * y;
    ab += sign * x * y;
  }
  Sums& operator+=(const Sums& o) {
    a += o.a, b += o.b, aa += o.aa, bb += o.bb, ab += o.ab;
    return *this;
  }
  Sums& operator-=(const Sums& o) {
    a -= o.a, b -= o.b, aa -= o.aa, bb -= o.bb, ab -= o.ab;
    return *this;
  }
};

double window_similarity(const Sums& sums, double count) {
  // Sample covariance; a window of one sample has none.
  const double degrees = std::max(count - 1, 1.0);
  const double mean_a = sums.a / count;
  const double mean_b = sums.b / count;
  const double var_a = (sums.aa - sums.a * mean_a) / degrees;
  const double var_b = (sums.bb - sums.b * mean_b) / degrees;
  const double cov = (sums.ab - sums.a * mean_b) / degrees;
  return (2 * mean_a * mean_b + kC1) * (2 * cov + kC2) /
         ((mean_a * mean_a + mean_b * mean_b + kC1) * (var_a + var_b + kC2));
}

// Slides the window down and right: each sample enters its column's sums once and leaves them once.
double mean_similarity(const Image& a, const Image& b) {
  const int64_t side = std::min({kWindow, a.width, a.height});
  const int64_t window = side - (side + 1) % 2;  // the largest odd one that fits
  const int64_t stride = a.width * kChannels;
  std::vector<Sums> columns(static_cast<size_t>(stride));
  auto add_row = [&](int64_t y, int32_t sign) {
    const uint8_t* row_a = a.pixels.data() + y * stride;
    const uint8_t* row_b = b.pixels.data() + y * stride;
    for (int64_t i = 0; i < stride; ++i) {
      columns[static_cast<size_t>(i)].add(row_a[i], row_b[i], sign);
    }
  };
  const auto count = static_cast<double>(window * window);
  double total = 0;
  for (int64_t y = 0; y < a.height; ++y) {
    add_row(y, 1);
    if (y >= window) add_row(y - window, -1);
    if (y < window - 1) continue;
    double row_total = 0;
    for (int64_t c = 0; c < kChannels; ++c) {
      Sums sums;
      for (int64_t x = 0; x < a.width; ++x) {
        sums += columns[static_cast<size_t>(x * kChannels + c)];
        if (x >= window) sums -= columns[static_cast<size_t>((x - window) * kChannels + c)];
        if (x >= window - 1) row_total += window_similarity(sums, count);
      }
    }
    total += row_total;
  }
  const int64_t windows = (a.width - window + 1) * (a.height - window + 1) * kChannels;
  return total / static_cast<double>(windows);
}

}  // namespace

ImageDifference compare_images(const Image& a, const Image& b) {
  constexpr std::string_view kWhere = "compare";
  io::check_image(a, kWhere);
  io::check_image(b, kWhere);
  if (a.width != b.width || a.height != b.height) {
    fail<InputError>(kWhere, "pictures must have one size: got ", a.width, "x", a.height, " and ",
                     b.width, "x", b.height, "; resize one of them first");
  }
  ImageDifference result;
  int64_t squares = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) {
    const int difference = std::abs(int{a.pixels[i]} - int{b.pixels[i]});
    squares += difference * difference;
    result.max_difference = std::max(result.max_difference, difference);
  }
  result.mse = static_cast<double>(squares) / static_cast<double>(a.pixels.size());
  result.psnr = squares == 0 ? std::numeric_limits<double>::infinity()
                             : 10 * std::log10(kPeak * kPeak / result.mse);
  result.ssim = squares == 0 ? 1 : mean_similarity(a, b);
  return result;
}

}  // namespace cachedit
