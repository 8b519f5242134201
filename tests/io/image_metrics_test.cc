#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cachedit/error.h"
#include "cachedit/image.h"
#include "io/image_fixtures.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

Image flat(int64_t width, int64_t height, uint8_t value) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), value)};
}

TEST(CompareImages, AgreesWithScikitImage) {
  std::ifstream in(test::golden("image_metrics/cases.json"));
  const auto cases = nlohmann::json::parse(in);
  ASSERT_GE(cases.size(), 16U);
  for (const auto& want : cases) {
    SCOPED_TRACE(want.dump());
    const Image a = wave_image(want["width"], want["height"]);
    const ImageDifference got = compare_images(a, with_noise(a, want["amplitude"]));
    // Sums of 8-bit samples are exact; what differs is the rounding of a few double operations.
    EXPECT_NEAR(got.mse, want["mse"].get<double>(), 1e-12 * got.mse);
    EXPECT_NEAR(got.psnr, want["psnr"].get<double>(), 1e-10);
    EXPECT_NEAR(got.ssim, want["ssim"].get<double>(), 1e-10);
    EXPECT_EQ(got.max_difference, want["max_difference"].get<int>());
  }
}

TEST(CompareImages, EqualPicturesAreInfinitelyClose) {
  const Image a = wave_image(9, 9);
  const ImageDifference got = compare_images(a, a);
  EXPECT_EQ(got.psnr, std::numeric_limits<double>::infinity());
  EXPECT_EQ(got.ssim, 1);
  EXPECT_EQ(got.mse, 0);
  EXPECT_EQ(got.max_difference, 0);
}

TEST(CompareImages, LargeDifferencesDoNotWrapAround) {
  const ImageDifference got = compare_images(flat(8, 8, 0), flat(8, 8, 255));
  EXPECT_EQ(got.mse, 255.0 * 255.0);
  EXPECT_EQ(got.psnr, 0);
  EXPECT_EQ(got.max_difference, 255);
  // No variance in either: only the luminance term is left.
  const double c1 = 2.55 * 2.55;
  EXPECT_NEAR(got.ssim, c1 / (255.0 * 255.0 + c1), 1e-12);
}

TEST(CompareImages, IsSymmetric) {
  const Image a = wave_image(31, 12);
  const Image b = with_noise(a, 40);
  const ImageDifference forward = compare_images(a, b);
  const ImageDifference backward = compare_images(b, a);
  EXPECT_EQ(forward.psnr, backward.psnr);
  EXPECT_DOUBLE_EQ(forward.ssim, backward.ssim);
}

TEST(CompareImages, WindowShrinksForPicturesSmallerThanIt) {
  // One sample per window: the mean of the luminance terms.
  const Image a{1, 1, {10, 20, 30}};
  const Image b{1, 1, {10, 20, 33}};
  const double c1 = 2.55 * 2.55;
  const double third = (2 * 30.0 * 33.0 + c1) / (30.0 * 30.0 + 33.0 * 33.0 + c1);
  EXPECT_NEAR(compare_images(a, b).ssim, (2 + third) / 3, 1e-12);
  EXPECT_DOUBLE_EQ(compare_images(a, b).mse, 3);

  // A 3 x 3 window over all of a 4-sample-high column of rows: still within [-1, 1] and finite.
  const Image wide = wave_image(20, 4);
  const double ssim = compare_images(wide, with_noise(wide, 30)).ssim;
  EXPECT_GT(ssim, -1);
  EXPECT_LT(ssim, 1);
}

TEST(CompareImages, RefusesDifferentSizesNamingBoth) {
  EXPECT_THAT(
      [] { compare_images(flat(8, 9, 0), flat(9, 8, 0)); },
      Throws<InputError>(Property(&InputError::what, AllOf(HasSubstr("8x9"), HasSubstr("9x8")))));
}

TEST(CompareImages, RefusesPicturesWithMissingSamples) {
  Image short_one = flat(8, 8, 0);
  short_one.pixels.pop_back();
  EXPECT_THROW(compare_images(short_one, flat(8, 8, 0)), InputError);
  EXPECT_THROW(compare_images(Image{}, Image{}), InputError);
}

}  // namespace
}  // namespace cachedit::io
