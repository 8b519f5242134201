// Tiling and slicing around a toy network that works on every position alone, so that tiles must
// give exactly what the whole gives.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cachedit/error.h"
#include "models/vae/tiling.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"
#include "toy_vae.h"

namespace cachedit::models {
namespace {

constexpr int64_t kScale = test::kToyScale;
using test::toy_decode;
using test::toy_encode;

struct Case {
  const char* name;
  int64_t height;
  int64_t width;
  int64_t tile;
  double overlap;
};

class VaeTilingToy : public testing::TestWithParam<Case> {
 protected:
  TileGrid grid() const {
    return plan_tiles({.tiling = true,
                       .tile_sample_min_size = GetParam().tile,
                       .tile_overlap_factor = GetParam().overlap},
                      512, kScale);
  }
  /// Two entries, so that a mix-up of batch and tiles would show.
  at::Tensor latents() const {
    return test::tiny_weight("latents",
                             {2, 4, GetParam().height / kScale, GetParam().width / kScale}) *
           50;
  }
  at::Tensor pixels() const {
    return test::tiny_weight("pixels", {2, 3, GetParam().height, GetParam().width}) * 500;
  }
  bool fits_in_a_tile() const {
    return std::max(GetParam().height, GetParam().width) <= GetParam().tile;
  }
};

TEST_P(VaeTilingToy, DecodesAsTheWhole) {
  const at::Tensor whole = toy_decode(latents());
  const at::Tensor tiled = tiled_decode(latents(), toy_decode, grid());
  ASSERT_EQ(tiled.sizes(), whole.sizes());
  EXPECT_LE(test::max_abs_error(tiled, whole), 1e-5);
  if (fits_in_a_tile()) {
    EXPECT_TRUE(tiled.equal(whole));
  }
}

TEST_P(VaeTilingToy, EncodesAsTheWhole) {
  const at::Tensor whole = toy_encode(pixels());
  const at::Tensor tiled = tiled_encode(pixels(), toy_encode, grid());
  ASSERT_EQ(tiled.sizes(), whole.sizes());
  EXPECT_LE(test::max_abs_error(tiled, whole), 1e-5);
  if (fits_in_a_tile()) {
    EXPECT_TRUE(tiled.equal(whole));
  }
}

TEST_P(VaeTilingToy, NoPieceIsLargerThanATile) {
  int64_t calls = 0, largest = 0;
  tiled_decode(
      latents(),
      [&](const at::Tensor& piece) {
        ++calls;
        largest = std::max({largest, piece.size(2), piece.size(3)});
        return toy_decode(piece);
      },
      grid());
  EXPECT_LE(largest * kScale, GetParam().tile);
  EXPECT_EQ(calls == 1, fits_in_a_tile());
}

INSTANTIATE_TEST_SUITE_P(
    Sides, VaeTilingToy,
    testing::Values(
        Case{"OneTile64", 64, 64, 512, 0.25}, Case{"OnePosition8", 8, 8, 512, 0.25},
        Case{"ExactlyATile", 512, 512, 512, 0.25}, Case{"JustAboveATile520", 520, 520, 512, 0.25},
        Case{"JustAboveATileWithoutOverlap", 520, 520, 512, 0.0},
        Case{"OneSideAboveATile", 512, 576, 512, 0.25},
        Case{"OneSideAboveWithoutOverlap", 512, 576, 512, 0.0},
        Case{"ManyTiles", 520, 384, 128, 0.25}, Case{"ManyTilesWithoutOverlap", 520, 384, 128, 0.0},
        Case{"TallAndNarrow", 520, 8, 64, 0.25}, Case{"WideAndFlat", 8, 520, 64, 0.5},
        // Tiles or overlaps that are not whole numbers of latent positions.
        Case{"OddTile200", 520, 576, 200, 0.25}, Case{"OddTile100", 520, 576, 100, 0.3},
        Case{"OverlapBelowOnePosition", 128, 128, 16, 0.25},
        // Tiles that overlap more than their neighbours.
        Case{"WideOverlap", 136, 104, 64, 0.75}, Case{"WidestOverlap", 72, 56, 32, 0.999},
        Case{"TilesOfOnePosition", 40, 24, 8, 0.25}),
    [](const auto& test) { return test.param.name; });

TEST(VaeTiling, FlatImagesStayFlat) {
  const TileGrid grid{.tile = 8, .stride = 6, .scale = kScale};
  const at::Tensor latents = at::full({1, 4, 29, 21}, 0.7);
  const at::Tensor tiled = tiled_decode(latents, toy_decode, grid);
  const at::Tensor want = toy_decode(at::full({1, 4, 1, 1}, 0.7)).narrow(2, 0, 1).narrow(3, 0, 1);
  EXPECT_LE(test::max_abs_error(tiled, want.expand_as(tiled)), 1e-6);
}

TEST(VaeTiling, SeamsFadeFromOneTileToTheNext) {
  // Each tile is filled with its number, from 0; tiles of 4 positions start at 0 and 3.
  double number = 0;
  const auto numbered = [&](const at::Tensor& piece) {
    return at::full({1, 1, piece.size(2) * 4, piece.size(3) * 4}, number++);
  };
  const at::Tensor row =
      tiled_decode(at::full({1, 1, 1, 7}, 0.0), numbered, {.tile = 4, .stride = 3, .scale = 4});
  std::vector<float> values;
  for (int64_t x = 0; x < 28; ++x) values.push_back(row[0][0][0][x].item<float>());
  std::vector<float> want(12, 0.0F);                    // the first tile alone
  want.insert(want.end(), {0.0F, 0.25F, 0.5F, 0.75F});  // the overlap
  want.insert(want.end(), 8, 1.0F);                     // the second alone
  want.insert(want.end(), {1.0F, 1.25F, 1.5F, 1.75F});  // the third tile, cut off after 1 position
  EXPECT_EQ(values, want);
}

TEST(VaeTiling, ANetworkThatReturnsItsInputKeepsItIntact) {
  const at::Tensor latents = test::tiny_weight("latents", {1, 2, 9, 9});
  const at::Tensor before = latents.clone();
  const auto identity = [](const at::Tensor& piece) { return piece; };
  const at::Tensor tiled = tiled_decode(latents, identity, {.tile = 4, .stride = 3, .scale = 1});
  EXPECT_TRUE(latents.equal(before));
  EXPECT_LE(test::max_abs_error(tiled, before), 1e-6);
}

TEST(VaeTiling, GridFollowsTheRequest) {
  const TileGrid usual = plan_tiles({.tiling = true}, 1024, 8);
  EXPECT_EQ(usual.tile, 128);
  EXPECT_EQ(usual.stride, 96);
  EXPECT_EQ(usual.scale, 8);
  // 0.29 * 100 is 28.999... in binary.
  EXPECT_EQ(
      plan_tiles({.tile_sample_min_size = 800, .tile_overlap_factor = 0.29}, 1024, 8).overlap(),
      29);
  // 25 positions, of which a quarter is not whole.
  EXPECT_EQ(plan_tiles({.tile_sample_min_size = 200}, 1024, 8).overlap(), 6);
  EXPECT_EQ(plan_tiles({.tile_overlap_factor = 0}, 512, 8).overlap(), 0);
}

TEST(VaeTiling, OverlapsOfATileOrMoreAreRefused) {
  for (const double factor : {1.0, 2.0, -0.1}) {
    test::expect_error<InputError>([&] { plan_tiles({.tile_overlap_factor = factor}, 512, 8); },
                                   testing::HasSubstr("overlap"));
  }
}

TEST(VaeSlicing, HandsOverOneEntryAtATime) {
  const at::Tensor latents = test::tiny_weight("latents", {3, 4, 2, 5});
  int64_t calls = 0;
  const at::Tensor result = sliced(latents, [&](const at::Tensor& entry) {
    ++calls;
    EXPECT_EQ(entry.size(0), 1);
    return toy_decode(entry);
  });
  EXPECT_EQ(calls, 3);
  EXPECT_LE(test::max_abs_error(result, toy_decode(latents)), 1e-6);
}

}  // namespace
}  // namespace cachedit::models
