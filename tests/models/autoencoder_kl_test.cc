#include "models/vae/autoencoder_kl.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cachedit/error.h"
#include "cachedit/image.h"
#include "models/vae_checkpoint.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kFp32 = 1e-5;

/// Peak 2: pixels run from -1 to 1.
double psnr(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor error = got.to(at::kDouble) - want.to(at::kDouble);
  return 10 * std::log10(4.0 / error.square().mean().item<double>());
}

/// The upper left of the demo model's sheet of samples, [1, 3, side, side].
at::Tensor sample_picture(int64_t side) {
  Image image = read_image(test::demo_model() / "samples.png");
  const at::Tensor pixels =
      at::from_blob(image.pixels.data(), {image.height, image.width, 3}, at::kByte);
  return (pixels.narrow(0, 0, side).narrow(1, 0, side).permute({2, 0, 1}).unsqueeze(0) / 127.5) - 1;
}

class AutoencoderKlGolden : public testing::TestWithParam<const char*> {};

TEST_P(AutoencoderKlGolden, AgreesWithDiffusers) {
  const TinyVae tiny(GetParam());
  const AutoencoderKl vae = tiny.load();
  const DiagonalGaussian latents = vae.encode(tiny.expected("pixels"));
  EXPECT_LE(test::relative_error(latents.mean, tiny.expected("mean")), kFp32);
  EXPECT_LE(test::relative_error(latents.logvar, tiny.expected("logvar")), kFp32);
  EXPECT_LE(test::relative_error(vae.decode(tiny.expected("latents")), tiny.expected("decoded")),
            kFp32);
}

INSTANTIATE_TEST_SUITE_P(Tiny, AutoencoderKlGolden,
                         testing::Values("vae_quant", "vae_plain", "vae_no_attention",
                                         "vae_one_level"),
                         [](const auto& test) { return std::string(test.param).substr(4); });

TEST(AutoencoderKl, DemoModelAgreesWithDiffusers) {
  const Tensors want = read_tensors(test::golden("vae_demo") / "expected.safetensors");
  const AutoencoderKl vae = load_demo_vae();
  const DiagonalGaussian latents = vae.encode(want.at("pixels"));
  EXPECT_LE(test::relative_error(latents.mean, want.at("mean")), kFp32);
  EXPECT_LE(test::relative_error(latents.logvar, want.at("logvar")), kFp32);
  EXPECT_LE(test::relative_error(vae.decode(want.at("latents")), want.at("decoded")), kFp32);
}

TEST(AutoencoderKl, TiledResultsAgreeWithDiffusers) {
  const TinyVae tiny("vae_quant");
  const AutoencoderKl vae = tiny.load();
  const VaeTiling tiling{.tiling = true, .tile_sample_min_size = 16};
  const DiagonalGaussian latents = vae.encode(tiny.expected("pixels"), tiling);
  EXPECT_LE(test::relative_error(latents.mean, tiny.expected("tiled.mean")), kFp32);
  EXPECT_LE(test::relative_error(latents.logvar, tiny.expected("tiled.logvar")), kFp32);
  EXPECT_LE(test::relative_error(vae.decode(tiny.expected("latents"), tiling),
                                 tiny.expected("tiled.decoded")),
            kFp32);
}

TEST(AutoencoderKl, TilesOfTheDemoModelJoinWithoutVisibleSeams) {
  const AutoencoderKl vae = load_demo_vae();
  const at::Tensor pixels = sample_picture(256);
  const VaeTiling tiling{.tiling = true, .tile_sample_min_size = 128};
  const at::Tensor latents = vae.encode(pixels).mean;
  EXPECT_EQ(vae.encode(pixels, tiling).mean.sizes(), latents.sizes());
  const at::Tensor whole = vae.decode(latents);
  const at::Tensor tiled = vae.decode(latents, tiling);
  ASSERT_EQ(tiled.sizes(), pixels.sizes());
  EXPECT_GE(psnr(tiled, whole), 30);
  EXPECT_GE(psnr(vae.decode(vae.encode(pixels, tiling).mean), whole), 30);
}

TEST(AutoencoderKl, TilesDefaultToTheConfigsSampleSize) {
  const AutoencoderKl vae = load_demo_vae();  // 128
  const at::Tensor pixels = sample_picture(160);
  const at::Tensor latents = vae.encode(pixels).mean;
  const at::Tensor by_default = vae.decode(latents, {.tiling = true});
  EXPECT_TRUE(by_default.equal(vae.decode(latents, {.tiling = true, .tile_sample_min_size = 128})));
  EXPECT_FALSE(by_default.equal(vae.decode(latents)));
}

TEST(AutoencoderKl, AnImageNoLargerThanATileIsComputedAsWithoutTiling) {
  const TinyVae tiny("vae_quant");
  const AutoencoderKl vae = tiny.load();
  const VaeTiling tiling{.tiling = true, .tile_sample_min_size = 28};
  EXPECT_TRUE(
      vae.decode(tiny.expected("latents"), tiling).equal(vae.decode(tiny.expected("latents"))));
  EXPECT_TRUE(vae.encode(tiny.expected("pixels"), tiling)
                  .mean.equal(vae.encode(tiny.expected("pixels")).mean));
}

TEST(AutoencoderKl, SlicesGiveWhatTheWholeBatchGives) {
  const TinyVae tiny("vae_quant");
  const AutoencoderKl vae = tiny.load();
  const VaeTiling slicing{.slicing = true};
  const at::Tensor& latents = tiny.expected("latents");
  const at::Tensor sliced = vae.decode(latents, slicing);
  EXPECT_LE(test::relative_error(sliced, tiny.expected("decoded")), kFp32);
  EXPECT_TRUE(sliced.equal(
      at::cat({vae.decode(latents.narrow(0, 0, 1)), vae.decode(latents.narrow(0, 1, 1))})));
  EXPECT_LE(test::relative_error(vae.encode(tiny.expected("pixels"), slicing).mean,
                                 tiny.expected("mean")),
            kFp32);
  const VaeTiling both{.tiling = true, .slicing = true, .tile_sample_min_size = 16};
  EXPECT_LE(test::relative_error(vae.decode(latents, both), tiny.expected("tiled.decoded")), kFp32);
}

TEST(AutoencoderKl, HalfPrecisionStaysNearFp32) {
  const at::Tensor pixels = sample_picture(128);
  const AutoencoderKl reference = load_demo_vae();
  const at::Tensor latents = reference.encode(pixels).mean;
  const at::Tensor want = reference.decode(latents);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const AutoencoderKl vae = load_demo_vae(dtype);
    EXPECT_EQ(vae.dtype(), dtype);
    const at::Tensor got = vae.decode(latents);
    EXPECT_EQ(got.scalar_type(), dtype);
    EXPECT_GE(psnr(got, want), 30) << dtype;
    EXPECT_LE(test::relative_error(vae.encode(pixels).mean, latents), 0.05) << dtype;
  }
}

TEST(AutoencoderKl, InputsKeepTheirValues) {
  const TinyVae tiny("vae_quant");
  const AutoencoderKl vae = tiny.load();
  const VaeTiling tiling{.tiling = true, .tile_sample_min_size = 16};
  const at::Tensor latents =
      tiny.expected("latents").clone().contiguous(at::MemoryFormat::ChannelsLast);
  vae.decode(latents);
  vae.decode(latents, tiling);
  EXPECT_TRUE(latents.equal(tiny.expected("latents")));
}

TEST(AutoencoderKl, OldNamesOfTheAttentionLayersAreRead) {
  const TinyVae tiny("vae_quant");
  const at::Tensor want = tiny.load().decode(tiny.expected("latents"));
  const std::map<std::string, std::string> old_names = {
      {"to_q.", "query."}, {"to_k.", "key."}, {"to_v.", "value."}, {"to_out.0.", "proj_attn."}};
  Tensors renamed;
  int changed = 0;
  for (const auto& [name, tensor] : tiny.tensors()) {
    std::string key = name;
    for (const auto& [present, old] : old_names) {
      const size_t at = key.find(present);
      if (at == std::string::npos) continue;
      key.replace(at, present.size(), old);
      ++changed;
    }
    renamed[key] = tensor.clone();
  }
  ASSERT_EQ(changed, 16);  // 4 layers, weight and bias, encoder and decoder
  tiny.replace(renamed);
  EXPECT_TRUE(tiny.load().decode(tiny.expected("latents")).equal(want));
}

TEST(AutoencoderKl, EveryTensorThatDoesNotFitIsNamed) {
  const TinyVae tiny("vae_plain");
  Tensors tensors;
  for (const auto& [name, tensor] : tiny.tensors()) tensors[name] = tensor.clone();
  tensors.erase("decoder.mid_block.attentions.0.to_q.bias");
  tensors["encoder.conv_in.weight"] = at::zeros({4, 3, 1, 1});
  tensors["quant_conv.weight"] = at::zeros({12, 12, 1, 1});
  tiny.replace(tensors);
  test::expect_error<WeightError>(
      [&] { tiny.load(); },
      AllOf(HasSubstr("decoder.mid_block.attentions.0.to_q.bias [8]"),
            HasSubstr("encoder.conv_in.weight"), HasSubstr("quant_conv.weight [12, 12, 1, 1]")));
}

TEST(AutoencoderKl, ShapesThatDoNotFitAreRefused) {
  const TinyVae tiny("vae_plain");  // 4 pixels to a latent position, 6 latent channels
  const AutoencoderKl vae = tiny.load();
  const auto encode = [&](at::IntArrayRef shape) {
    return [&vae, image = at::zeros(shape)] { vae.encode(image); };
  };
  const auto decode = [&](at::IntArrayRef shape) {
    return [&vae, latents = at::zeros(shape)] { vae.decode(latents); };
  };
  test::expect_error<InputError>(encode({1, 3, 18, 16}),
                                 AllOf(HasSubstr("multiples of 4"), HasSubstr("18 x 16")));
  test::expect_error<InputError>(encode({1, 3, 16, 2}), HasSubstr("multiples of 4"));
  test::expect_error<InputError>(encode({3, 16, 16}), HasSubstr("[3, 16, 16]"));
  test::expect_error<InputError>(encode({1, 4, 16, 16}), HasSubstr("3 channels"));
  test::expect_error<InputError>(encode({0, 3, 16, 16}), HasSubstr("empty"));
  test::expect_error<InputError>(decode({1, 3, 4, 4}), HasSubstr("6 channels"));
  test::expect_error<InputError>(decode({1, 6, 4}), HasSubstr("[1, 6, 4]"));
  test::expect_error<InputError>(decode({1, 6, 0, 4}), HasSubstr("empty"));
  test::expect_error<InputError>([&] { vae.decode(at::Tensor()); }, HasSubstr("no tensor"));
  test::expect_error<InputError>(
      [&] {
        vae.decode(at::zeros({1, 6, 4, 4}, at::kLong));
      },
      HasSubstr("floating-point"));
}

TEST(AutoencoderKl, TilesThatCannotBeAreRefused) {
  const TinyVae tiny("vae_plain");
  const AutoencoderKl vae = tiny.load();
  for (const double overlap : {1.0, 1.5, -0.25, std::nan("")}) {
    const VaeTiling tiling{.tiling = true, .tile_overlap_factor = overlap};
    test::expect_error<InputError>(
        [&] {
          vae.decode(at::zeros({1, 6, 4, 4}), tiling);
        },
        HasSubstr("overlap"));
    test::expect_error<InputError>(
        [&] {
          vae.encode(at::zeros({1, 3, 16, 16}), tiling);
        },
        HasSubstr("overlap"));
  }
  for (const int64_t side : {3, -8}) {
    test::expect_error<InputError>(
        [&] {
          vae.decode(at::zeros({1, 6, 4, 4}), {.tiling = true, .tile_sample_min_size = side});
        },
        AllOf(HasSubstr("latent position"), HasSubstr(std::to_string(side))));
  }
}

class DiagonalGaussianSample : public testing::TestWithParam<const char*> {};

TEST_P(DiagonalGaussianSample, IsBitEqualToDiffusers) {
  const Tensors want = read_tensors(test::golden("vae_sample") / "expected.safetensors");
  const std::string dtype = GetParam();
  const DiagonalGaussian gaussian{.mean = want.at(dtype + ".mean"),
                                  .logvar = want.at(dtype + ".logvar")};
  at::Generator generator = at::detail::createCPUGenerator(42);
  const at::Tensor sample = gaussian.sample(generator);
  EXPECT_EQ(sample.scalar_type(), gaussian.mean.scalar_type());
  EXPECT_TRUE(sample.equal(want.at(dtype + ".sample")));
  EXPECT_FALSE(gaussian.sample(generator).equal(sample));  // the generator moved on
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DiagonalGaussianSample, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& test) { return std::string(test.param); });

TEST(DiagonalGaussian, LogvarIsClamped) {
  const TinyVae tiny("vae_plain");
  Tensors tensors;
  for (const auto& [name, tensor] : tiny.tensors()) tensors[name] = tensor.clone();
  at::Tensor& bias = tensors.at("encoder.conv_out.bias");  // 6 means, 6 log-variances
  bias[6] = 1000.0;
  bias[7] = -1000.0;
  tiny.replace(tensors);
  const at::Tensor logvar = tiny.load().encode(tiny.expected("pixels")).logvar;
  EXPECT_TRUE(logvar.select(1, 0).eq(20).all().item<bool>());
  EXPECT_TRUE(logvar.select(1, 1).eq(-30).all().item<bool>());
}

}  // namespace
}  // namespace cachedit::models
