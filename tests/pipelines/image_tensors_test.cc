#include "pipelines/image_tensors.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/image_resize.h"
#include "io/safetensors.h"
#include "support/temp_dir.h"

namespace cachedit::pipelines {
namespace {

TEST(ImageTensors, RoundTripOfEveryByte) {
  Image image{.width = 256, .height = 2, .pixels = {}};
  for (int i = 0; i < 256 * 2 * 3; ++i) image.pixels.push_back(static_cast<uint8_t>(i * 7));
  const at::Tensor pixels = image_to_pixels(image);
  ASSERT_EQ(pixels.sizes(), at::IntArrayRef({1, 3, 2, 256}));
  EXPECT_GE(pixels.min().item<float>(), -1.0f);
  EXPECT_LE(pixels.max().item<float>(), 1.0f);
  EXPECT_EQ(pixels_to_images(pixels)[0].pixels, image.pixels);
}

TEST(ImageTensors, ClampsAndRoundsHalfToEven) {
  // 0.5 / 255 and 1.5 / 255 in [0, 1] lie on ties; diffusers rounds them to the even value.
  const at::Tensor pixels = at::tensor({-3.0f, 3.0f, 0.0f}).view({1, 3, 1, 1});
  EXPECT_THAT(pixels_to_images(pixels)[0].pixels, ::testing::ElementsAre(0, 255, 128));
}

TEST(ImageTensors, OnePicturePerBatchEntry) {
  EXPECT_EQ(pixels_to_images(at::full({3, 3, 4, 5}, 0.5)).size(), 3u);
}

TEST(LanczosResize, EqualsPil) {
  Image image{.width = 23, .height = 17, .pixels = {}};
  for (int y = 0; y < 17; ++y) {
    for (int x = 0; x < 23; ++x) {
      image.pixels.push_back(static_cast<uint8_t>((x * 37 + y * 11) % 256));
      image.pixels.push_back(static_cast<uint8_t>((x * y * 5) % 256));
      image.pixels.push_back(static_cast<uint8_t>(((255 - x * 9 - y * 3) % 256 + 256) % 256));
    }
  }
  const io::SafetensorsFile golden(test::golden("noise") / "lanczos.safetensors");
  EXPECT_EQ(golden.header().tensors.size(), 10u);
  for (const auto& [name, entry] : golden.header().tensors) {
    const Image got = io::resize_lanczos(image, entry.shape[1], entry.shape[0]);
    const at::Tensor want = golden.tensor(name);
    const auto* bytes = want.const_data_ptr<uint8_t>();
    EXPECT_EQ(got.pixels, std::vector<uint8_t>(bytes, bytes + want.numel())) << name;
  }
}

}  // namespace
}  // namespace cachedit::pipelines
