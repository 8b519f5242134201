// The vectorized rounding functions against the formats' definitions, written out as tables.
#include "kernels/number_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/kernel_runner.h"

namespace cachedit::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// The 127 finite magnitudes of OCP e4m3 in the order of their codes: 8 subnormals of 2^-9, then
/// (8 + m) x 2^(e - 10); code 127 is NaN.
std::vector<float> e4m3_magnitudes() {
  std::vector<float> values;
  for (int code = 0; code < 127; ++code) {
    const int exponent = code / 8, mantissa = code % 8;
    values.push_back(exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10));
  }
  return values;
}

const std::vector<float> kE2m1Magnitudes = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// The nearest of `magnitudes`, ties to the even code, beyond the last the last; the sign stays.
float nearest(const std::vector<float>& magnitudes, float x) {
  if (std::isnan(x)) return x;
  const double a = std::min<double>(std::abs(x), magnitudes.back());
  size_t best = 0;
  for (size_t code = 1; code < magnitudes.size(); ++code) {
    const double distance = std::abs(a - magnitudes[code]);
    const double best_distance = std::abs(a - magnitudes[best]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::copysign(magnitudes[best], x);
}

/// As nearest(), by bisection: the sweep is long.
float nearest_e4m3(float x) {
  static const std::vector<float> kMagnitudes = e4m3_magnitudes();
  if (std::isnan(x)) return x;
  const float a = std::abs(x);
  const auto above = std::lower_bound(kMagnitudes.begin(), kMagnitudes.end(), a);
  if (above == kMagnitudes.end()) return std::copysign(448.0f, x);
  const auto first = above == kMagnitudes.begin() ? above : above - 1;
  const auto code = static_cast<size_t>(first - kMagnitudes.begin());
  const size_t last = std::min(code + 1, kMagnitudes.size() - 1);
  const double low = static_cast<double>(a) - kMagnitudes[code];
  const double high = static_cast<double>(kMagnitudes[last]) - a;
  const bool up = high < low || (high == low && last % 2 == 0);
  return std::copysign(kMagnitudes[up ? last : code], x);
}

/// Every bfloat16 value, every e4m3 value and every tie between two of them with its neighbours,
/// both signs, and a million random bit patterns.
std::vector<float> sweep() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high) values.push_back(std::bit_cast<float>(high << 16));
  const std::vector<float> magnitudes = e4m3_magnitudes();
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    const float next = i + 1 < magnitudes.size() ? magnitudes[i + 1] : 480;
    const float tie = (magnitudes[i] + next) / 2;
    for (const float x : {magnitudes[i], tie}) {
      for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, kInfinity)}) {
        values.push_back(y);
        values.push_back(-y);
      }
    }
  }
  for (const float x : {kInfinity, kNan, std::numeric_limits<float>::denorm_min(),
                        std::numeric_limits<float>::min(), std::numeric_limits<float>::max()}) {
    values.push_back(x);
    values.push_back(-x);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    // Half of them anywhere, half of them in the range of the format.
    const uint32_t bits = random();
    const uint32_t exponent = 127 - 12 + random() % 22;
    values.push_back(
        std::bit_cast<float>(i % 2 == 0 ? bits : (bits & 0x807fffff) | exponent << 23));
  }
  return values;
}

bool same_bits(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

class NumberFormats : public ::testing::TestWithParam<CpuIsa> {};

TEST(NumberFormatsDefinition, BisectionIsTheNearest) {
  const std::vector<float> magnitudes = e4m3_magnitudes();
  EXPECT_EQ(magnitudes.back(), 448);
  EXPECT_EQ(magnitudes[1], std::ldexp(1.0f, -9));
  for (const float x : sweep()) {
    if (std::abs(x) > 1e-4 && std::abs(x) < 500) {
      ASSERT_TRUE(same_bits(nearest_e4m3(x), nearest(magnitudes, x))) << x;
    }
  }
  EXPECT_EQ(nearest(kE2m1Magnitudes, 0.25f), 0);
  EXPECT_EQ(nearest(kE2m1Magnitudes, -2.5f), -2);
  EXPECT_EQ(nearest(kE2m1Magnitudes, 5), 4);
  EXPECT_EQ(nearest(kE2m1Magnitudes, 5.01f), 6);
}

TEST_P(NumberFormats, E4m3IsTheNearestNumber) {
  const std::vector<float> in = sweep();
  std::vector<float> out(in.size(), -1);
  round_to_e4m3(in.data(), out.data(), static_cast<int64_t>(in.size()), GetParam());
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_TRUE(same_bits(out[i], nearest_e4m3(in[i])))
        << in[i] << " became " << out[i] << ", not " << nearest_e4m3(in[i]);
  }
}

TEST_P(NumberFormats, E4m3TakesAnyCountAndWorksInPlace) {
  const std::vector<float> all = sweep();
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> buffer(count + 1, 3.3f);
    std::copy_n(all.begin() + 30000, count, buffer.begin());
    round_to_e4m3(buffer.data(), buffer.data(), static_cast<int64_t>(count), GetParam());
    EXPECT_EQ(buffer[count], 3.3f);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(same_bits(buffer[i], nearest_e4m3(all[30000 + i]))) << count << " " << i;
    }
  }
}

/// The definition of one block of 16.
void expect_nvfp4_block(const float* in, const float* values, float scale) {
  float amax = 0;
  for (int i = 0; i < 16; ++i) amax = std::max(amax, std::abs(in[i]));
  const float want_scale = nearest_e4m3(amax / 6);
  ASSERT_TRUE(same_bits(scale, want_scale)) << scale << ", not " << want_scale;
  for (int i = 0; i < 16; ++i) {
    const float want = want_scale == 0 ? 0 : nearest(kE2m1Magnitudes, in[i] / want_scale);
    ASSERT_EQ(values[i], want) << in[i] << " with scale " << scale;
    ASSERT_TRUE(want_scale == 0 || same_bits(values[i], want)) << in[i];
  }
}

TEST_P(NumberFormats, Nvfp4IsItsDefinition) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> in;
  for (int block = 0; block < 20'000; ++block) {
    // From blocks whose scale underflows to blocks whose scale saturates.
    const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 32) - 16);
    for (int i = 0; i < 16; ++i) in.push_back(normal(random) * magnitude);
  }
  for (int block = 0; block < 2'000; ++block) {
    // Multiples of 1/8 with a largest element of 6: scale 1, and every tie occurs.
    for (int i = 0; i < 16; ++i) {
      in.push_back((static_cast<float>(random() % 97) - 48) / 8);
    }
    in.back() = 6;
  }
  const size_t special = in.size();
  in.resize(special + 3 * 16, 0);
  in[special + 16] = 1e-20f;  // the scale is 0
  in[special + 17] = -1e-20f;
  in[special + 32] = 1e30f;  // the scale saturates, and so does the element
  in[special + 33] = -0.0f;

  const auto count = static_cast<int64_t>(in.size());
  std::vector<float> values(in.size(), -1), scales(in.size() / 16, -1);
  round_to_nvfp4(in.data(), values.data(), scales.data(), count, GetParam());
  for (size_t block = 0; block < scales.size(); ++block) {
    ASSERT_NO_FATAL_FAILURE(expect_nvfp4_block(&in[block * 16], &values[block * 16], scales[block]))
        << "block " << block;
  }
  EXPECT_EQ(scales.back(), 448);
  EXPECT_EQ(values[special + 32], 6);
}

INSTANTIATE_TEST_SUITE_P(Isas, NumberFormats, ::testing::ValuesIn(test::supported_isas()),
                         [](const auto& test) { return isa_name(test.param); });

}  // namespace
}  // namespace cachedit::kernels
