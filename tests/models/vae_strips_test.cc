// One VAE shared by several ranks gives what one process gives.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "models/vae/strips.h"
#include "models/vae_checkpoint.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"
#include "toy_vae.h"

namespace cachedit::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kFp32 = 1e-5;

at::Tensor noise(const char* name, at::IntArrayRef shape) {
  return test::tiny_weight(name, shape) * 3;
}

/// What every rank gets; checks that it is the same on all of them.
at::Tensor on_ranks(int64_t ranks, const std::function<at::Tensor(comm::Communicator&)>& work) {
  std::vector<at::Tensor> results(static_cast<size_t>(ranks));
  test::run_ranks(ranks, [&](comm::Communicator& group) {
    results[static_cast<size_t>(group.rank())] = work(group);
  });
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(results[0]));
  return results[0];
}

struct Case {
  const char* vae;
  int64_t ranks;
};

/// Two latents of 7 rows for up to 4 ranks and fewer rows than ranks above; 11 rows for all.
class VaeStripsGolden : public testing::TestWithParam<Case> {
 protected:
  VaeStripsGolden() : vae_(TinyVae(GetParam().vae).load()) {}
  void expect_as_alone(int64_t rows) const {
    const AutoencoderKlConfig& config = vae_.config();
    const int64_t ranks = GetParam().ranks, scale = config.scale_factor();
    const at::Tensor latents = noise("latents", {2, config.latent_channels, rows, 5});
    const at::Tensor image = vae_.decode(latents);
    EXPECT_LE(test::relative_error(on_ranks(ranks,
                                            [&](comm::Communicator& group) {
                                              return vae_.decode(latents, {}, &group);
                                            }),
                                   image),
              kFp32);
    const at::Tensor pixels = noise("pixels", {2, config.in_channels, rows * scale, 5 * scale});
    const DiagonalGaussian want = vae_.encode(pixels);
    const auto encoded = [&](auto member) {
      return on_ranks(ranks, [&](comm::Communicator& group) {
        return vae_.encode(pixels, {}, &group).*member;
      });
    };
    EXPECT_LE(test::relative_error(encoded(&DiagonalGaussian::mean), want.mean), kFp32);
    EXPECT_LE(test::relative_error(encoded(&DiagonalGaussian::logvar), want.logvar), kFp32);
  }
  AutoencoderKl vae_;
};

TEST_P(VaeStripsGolden, GivesWhatOneProcessGives) { expect_as_alone(11); }
TEST_P(VaeStripsGolden, GivesWhatOneProcessGivesOfASmallPicture) { expect_as_alone(3); }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* vae : {"vae_quant", "vae_plain", "vae_no_attention", "vae_one_level"}) {
    for (const int64_t ranks : {1, 2, 3, 4, 6, 8}) cases.push_back({vae, ranks});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Tiny, VaeStripsGolden, testing::ValuesIn(all_cases()),
                         [](const auto& test) {
                           return std::string(test.param.vae).substr(4) + "_" +
                                  std::to_string(test.param.ranks);
                         });

TEST(VaeStrips, OneRankComputesTheSameBits) {
  const AutoencoderKl vae = TinyVae("vae_quant").load();
  const at::Tensor latents = noise("latents", {2, 4, 6, 5});
  comm::SingleProcess alone;
  EXPECT_TRUE(vae.decode(latents, {}, &alone).equal(vae.decode(latents)));
  // A single process may tile.
  const VaeTiling tiling{.tiling = true, .tile_sample_min_size = 8};
  EXPECT_TRUE(vae.decode(latents, tiling, &alone).equal(vae.decode(latents, tiling)));
}

TEST(VaeStrips, DemoModelInEveryDtype) {
  const at::Tensor latents = noise("latents", {1, 16, 9, 8});
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, kFp32},
                                         // Some 30 layers, each rounding to 2^-9 or 2^-12; the
                                         // kernels add in another order for another height.
                                         {at::kBFloat16, 2e-2},
                                         {at::kHalf, 2e-3}}) {
    const AutoencoderKl vae = load_demo_vae(dtype);
    const at::Tensor want = vae.decode(latents);
    const at::Tensor got =
        on_ranks(2, [&](comm::Communicator& group) { return vae.decode(latents, {}, &group); });
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_LE(test::relative_error(got, want), tolerance) << dtype;
  }
}

TEST(VaeStrips, MemoryFormatsOfTheInputDoNotMatter) {
  const AutoencoderKl vae = TinyVae("vae_quant").load();
  const at::Tensor latents = noise("latents", {2, 4, 6, 5});
  const auto decoded = [&](const at::Tensor& x) {
    return on_ranks(2, [&](comm::Communicator& group) { return vae.decode(x, {}, &group); });
  };
  const at::Tensor want = decoded(latents);
  EXPECT_TRUE(decoded(latents.contiguous(at::MemoryFormat::ChannelsLast)).equal(want));
  EXPECT_TRUE(decoded(latents.transpose(2, 3).contiguous().transpose(2, 3)).equal(want));
}

TEST(VaeStrips, HalosDoNotGrowWithThePictureHeight) {
  const AutoencoderKl vae = TinyVae("vae_no_attention").load();  // 2 channels out, 2 pixels a row
  // What the middle of 3 ranks sends besides its strip of the result, which goes to the 2 others.
  const auto sent = [&](int64_t rows) {
    int64_t bytes = 0;
    test::run_ranks(3, [&](comm::Communicator& group) {
      vae.decode(noise("latents", {1, 2, rows, 5}), {}, &group);
      if (group.rank() != 1) return;
      bytes = group.traffic().bytes_sent - 2 * (2 * (2 * rows / 3) * 10 * 4);
    });
    return bytes;
  };
  // Two rows of the input of each convolution, by config: conv_in, two residual blocks in the
  // middle, two and two on the way up (channels 9 to 6 in the last), an upsampler, conv_out.
  const int64_t coarse = 2 + 4 * 9 + 4 * 9, fine = 9 + (9 + 6) + (6 + 6) + 6;
  const int64_t halos = 2 * 4 * (5 * coarse + 10 * fine);
  const int64_t norms = 4 + 4 + 4 + 1, statistics = 2 * norms * (2 * 3 * 8);  // 3 groups
  EXPECT_EQ(sent(3), halos + statistics);
  EXPECT_EQ(sent(12), halos + statistics);
}

TEST(VaeStrips, TilesAndSlicesAreRefused) {
  const AutoencoderKl vae = TinyVae("vae_plain").load();
  test::run_ranks(2, [&](comm::Communicator& group) {
    const at::Tensor latents = noise("latents", {1, 6, 4, 4}),
                     pixels = noise("pixels", {1, 3, 16, 16});
    const VaeTiling tiling{.tiling = true}, slicing{.slicing = true};
    for (const auto& [options, name] : {std::pair{tiling, "tiling"}, {slicing, "slicing"}}) {
      const auto text = AllOf(HasSubstr(name), HasSubstr("several ranks"), HasSubstr("2 ranks"));
      test::expect_error<InputError>([&] { vae.decode(latents, options, &group); },
                                     AllOf(HasSubstr("[vae decode]"), text));
      test::expect_error<InputError>([&] { vae.encode(pixels, options, &group); },
                                     AllOf(HasSubstr("[vae encode]"), text));
    }
  });
}

TEST(VaeStrips, BadInputsAreRefusedBeforeAnyExchange) {
  const AutoencoderKl vae = TinyVae("vae_plain").load();
  test::run_ranks(2, [&](comm::Communicator& group) {
    EXPECT_THROW(vae.decode(noise("latents", {1, 5, 4, 4}), {}, &group), InputError);
    EXPECT_THROW(vae.encode(noise("pixels", {1, 3, 18, 16}), {}, &group), InputError);
    EXPECT_EQ(group.traffic().exchanges, 0);
  });
}

TEST(VaeStrips, ParameterBytesAreTheFiles) {
  const TinyVae tiny("vae_plain");
  int64_t elements = 0;
  for (const auto& [name, tensor] : tiny.tensors()) elements += tensor.numel();
  EXPECT_EQ(tiny.load().parameter_bytes(), 4 * elements);
  EXPECT_EQ(tiny.load({.dtype = at::kBFloat16}).parameter_bytes(), 2 * elements);
}

constexpr int64_t kScale = test::kToyScale;
using test::toy_decode;
using test::toy_encode;

struct Sides {
  const char* name;
  int64_t height;
  int64_t width;
  int64_t ranks;
};

class VaeStripsToy : public testing::TestWithParam<Sides> {};

TEST_P(VaeStripsToy, DecodesAndEncodesAsTheWhole) {
  const auto& [name, height, width, ranks] = GetParam();
  const int64_t h = height / kScale, w = width / kScale;
  const at::Tensor latents = noise("latents", {2, 4, h, w});
  const at::Tensor pixels = noise("pixels", {2, 3, height, width});
  const auto run = [&](const at::Tensor& x, at::Tensor (*toy)(const at::Tensor&)) {
    const at::Tensor whole = toy(x);
    const at::Tensor got = on_ranks(ranks, [&](comm::Communicator& group) {
      return in_strips(
          x, [&](const at::Tensor& strip, const nn::SpatialShard&) { return toy(strip); },
          {.rows = h, .result_shape = whole.sizes().vec(), .result_options = whole.options()},
          group);
    });
    ASSERT_EQ(got.sizes(), whole.sizes());
    EXPECT_LE(test::max_abs_error(got, whole), 1e-5);
  };
  run(latents, toy_decode);
  run(pixels, toy_encode);
}

INSTANTIATE_TEST_SUITE_P(Sides, VaeStripsToy,
                         testing::Values(Sides{"Side64", 64, 64, 2}, Sides{"Side520", 520, 520, 2},
                                         Sides{"Wide", 512, 576, 2}, Sides{"OnePosition", 8, 8, 2},
                                         Sides{"OneRow", 8, 64, 3}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(VaeStrips, AResultOfAnotherShapeThanPlannedIsNoticed) {
  const at::Tensor latents = noise("latents", {1, 4, 4, 4});
  EXPECT_THROW(
      test::run_ranks(
          2,
          [&](comm::Communicator& group) {
            in_strips(
                latents, [](const at::Tensor& strip, const nn::SpatialShard&) { return strip; },
                {.rows = 4, .result_shape = {1, 3, 4, 4}, .result_options = latents.options()},
                group);
          }),
      CommError);
}

}  // namespace
}  // namespace cachedit::models
