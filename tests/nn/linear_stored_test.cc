// Weights that the checkpoint holds quantized: values and scales are taken as they are.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "cachedit/error.h"
#include "nn/weight_quantizer.h"
#include "quantized_reference.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using test::LayerFile;
using test::tiny_weight;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kIn = 256, kOut = 192;

LinearWeight stored(QuantType type, int64_t group = 64, int64_t out = kOut, int64_t in = kIn) {
  return quantized({.values = tiny_weight("w.weight", {out, in}), .scales = {}, .file = {}}, type,
                   group);
}

WeightOptions with_type(std::optional<QuantType> type) {
  WeightOptions options{.dtype = at::kFloat};
  options.quantization.type = type;
  return options;
}

TEST(StoredLinear, EqualsQuantizingAtLoadBitByBit) {
  LayerFile plain({{"layer.weight", tiny_weight("w.weight", {kOut, kIn})},
                   {"layer.bias", tiny_weight("w.bias", {kOut})}});
  const at::Tensor x = tiny_weight("x", {1, 5, kIn});
  for (const QuantType type : test::all_quant_types()) {
    const LinearWeight held = stored(type);
    LayerFile file({{"layer.weight", held.values},
                    {"layer.weight_scale", held.scales},
                    {"layer.bias", tiny_weight("w.bias", {kOut})}});
    const Linear from_file = file.load(kIn, kOut, type);
    const Linear at_load = plain.load(kIn, kOut, type);
    EXPECT_TRUE(test::same_values(from_file(x), at_load(x))) << name_of(type);
    EXPECT_TRUE(file.layers().at(0).was_quantized);
    EXPECT_EQ(file.layers().at(0).type, type);
    EXPECT_EQ(file.layers().at(0).bytes, plain.layers().at(0).bytes);
    EXPECT_LE(file.layers().at(0).stored_bytes, held.values.nbytes() + held.scales.nbytes());
  }
}

TEST(StoredLinear, ASmallWeightIsOneBlock) {
  LayerFile plain({{"layer.weight", tiny_weight("w.weight", {96, 128})}});
  const LinearWeight held = stored(QuantType::kFloat8PerBlock, 64, 96, 128);
  LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
  const at::Tensor x = tiny_weight("x", {1, 5, 128});
  const auto type = QuantType::kFloat8PerBlock;
  EXPECT_TRUE(test::same_values(file.load(128, 96, type)(x), plain.load(128, 96, type)(x)));
}

TEST(StoredLinear, WithoutAPlanActivationsAreNotRounded) {
  const at::Tensor x = tiny_weight("x", {1, 5, kIn});
  for (const QuantType type : test::all_quant_types()) {
    const LinearWeight held = stored(type);
    LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
    const Linear layer = file.load(kIn, kOut, std::nullopt);
    const at::Tensor want = at::linear(x.to(at::kBFloat16).to(at::kDouble),
                                       dequantized(held, at::kFloat).to(at::kDouble));
    EXPECT_LE(test::relative_error(layer(x), want), 4e-3) << name_of(type);
    EXPECT_THAT(name_of(*file.layers().at(0).type), HasSubstr("weight_only"));
  }
}

TEST(StoredLinear, ScalesHaveManyNamesShapesAndTypes) {
  const at::Tensor x = tiny_weight("x", {1, 5, kIn});
  const at::Tensor values = (tiny_weight("w.weight", {kOut, kIn}) * 100).to(at::kFloat8_e4m3fn);
  const at::Tensor rows = tiny_weight("scales", {kOut}).abs() + 0.5;
  const auto expect = [&](const std::string& name, const at::Tensor& scale) {
    LayerFile file({{"layer.weight", values}, {"layer." + name, scale}});
    const Linear layer = file.load(kIn, kOut, std::nullopt);
    at::Tensor factors = scale.to(at::kDouble);
    if (factors.numel() > 1) factors = factors.reshape({kOut, 1});
    const at::Tensor want =
        at::linear(x.to(at::kBFloat16).to(at::kDouble), values.to(at::kDouble) * factors);
    EXPECT_LE(test::relative_error(layer(x), want), 4e-3) << name << scale.sizes();
    EXPECT_LE(file.layers().at(0).bytes, kOut * kIn * 104 / 100) << "one byte a weight";
  };
  for (const char* name : {"weight_scale", "scale_weight", "weight_scale_inv", "weight.scale"}) {
    expect(name, rows);
    expect(name, rows.unsqueeze(1));
    expect(name, at::full({}, 0.25));
    expect(name, at::full({1}, 0.25));
    expect(name, at::full({1, 1}, 0.25));
    expect(name, rows.to(at::kBFloat16));
  }
}

TEST(StoredLinear, Float8WithoutAScaleIsTakenAsItIs) {
  const at::Tensor values = tiny_weight("w.weight", {kOut, kIn}).to(at::kFloat8_e4m3fn);
  LayerFile file({{"layer.weight", values}});
  const at::Tensor x = tiny_weight("x", {1, 5, kIn});
  const Linear layer = file.load(kIn, kOut, std::nullopt);
  EXPECT_LE(test::relative_error(layer(x), at::linear(x.to(at::kDouble), values.to(at::kDouble))),
            4e-3);
  EXPECT_LE(file.layers().at(0).bytes, kOut * kIn * 104 / 100);
}

TEST(StoredLinear, BlocksOf128MayBeCutOff) {
  constexpr int64_t kRaggedIn = 300, kRaggedOut = 200;
  const LinearWeight held = stored(QuantType::kFloat8PerBlock, 64, kRaggedOut, kRaggedIn);
  ASSERT_EQ(held.scales.sizes(), at::IntArrayRef({2, 3}));
  LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale_inv", held.scales}});
  const at::Tensor x = tiny_weight("x", {1, 5, kRaggedIn});
  const at::Tensor want =
      at::linear(x.to(at::kBFloat16).to(at::kDouble),
                 test::rounded_weight(tiny_weight("w.weight", {kRaggedOut, kRaggedIn}),
                                      QuantType::kFloat8PerBlock));
  EXPECT_LE(test::relative_error(file.load(kRaggedIn, kRaggedOut, std::nullopt)(x), want), 4e-3);
}

TEST(StoredLinear, GroupsAreThoseOfTheFileWhateverThePlanSays) {
  for (const int64_t group : {32, 64, 128}) {
    const LinearWeight held = stored(QuantType::kInt4WeightOnly, group);
    LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
    const Linear layer = file.load(kIn, kOut, QuantType::kInt4WeightOnly);
    const at::Tensor x = tiny_weight("x", {1, 5, kIn});
    const at::Tensor want = test::reference_linear(x, tiny_weight("w.weight", {kOut, kIn}), {},
                                                   QuantType::kInt4WeightOnly, group);
    EXPECT_LE(test::relative_error(layer(x), want), 4e-3) << group;
  }
}

TEST(StoredLinear, ATypeOfAnotherKindIsNotAskedForInVain) {
  const LinearWeight held = stored(QuantType::kInt8PerRow);
  LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
  file.load(kIn, kOut, QuantType::kFloat8PerRow);
  EXPECT_EQ(file.layers().at(0).type, QuantType::kInt8WeightOnly);
  EXPECT_THAT(file.layers().at(0).note, HasSubstr("kept so"));
}

TEST(StoredLinear, ScalesOfActivationsAreNotLeftOver) {
  const at::Tensor values = tiny_weight("w.weight", {kOut, kIn}).to(at::kFloat8_e4m3fn);
  LayerFile file({{"layer.weight", values},
                  {"layer.scale_weight", at::ones({1})},
                  {"layer.scale_input", at::ones({1})},
                  {"scaled_fp8", at::zeros({2}).to(at::kFloat8_e4m3fn)}});
  EXPECT_NO_THROW(file.load(kIn, kOut, std::nullopt));
}

TEST(StoredLinear, WhatCannotBeReadIsRefusedByName) {
  const auto refused = [](const std::map<std::string, at::Tensor>& tensors) {
    try {
      LayerFile(tensors).load(kIn, kOut, std::nullopt);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  const at::Tensor weight = tiny_weight("w.weight", {kOut, kIn});
  const at::Tensor int8 = weight.to(at::kChar), e4m3 = weight.to(at::kFloat8_e4m3fn);
  const at::Tensor int4 = at::zeros({kOut, kIn / 2}, at::kByte);
  EXPECT_THAT(refused({{"layer.weight", weight.to(at::kFloat8_e5m2)}}),
              AllOf(HasSubstr("layer.weight"), HasSubstr("fp8_e5m2"), HasSubstr("float8_e4m3fn")));
  EXPECT_THAT(refused({{"layer.weight", weight.to(at::kInt)}}), HasSubstr("Int"));
  EXPECT_THAT(refused({{"layer.weight", int8}}), HasSubstr("needs scales beside it"));
  EXPECT_THAT(refused({{"layer.weight", int4}}), HasSubstr("needs scales beside it"));
  EXPECT_THAT(refused({{"layer.weight", int8}, {"layer.weight_scale", at::ones({3})}}),
              AllOf(HasSubstr("one number, one per output: got [3]")));
  EXPECT_THAT(refused({{"layer.weight", e4m3}, {"layer.weight_scale", at::ones({2, 3})}}),
              AllOf(HasSubstr("one per block of 128 x 128: got [2, 3]")));
  EXPECT_THAT(refused({{"layer.weight", int4}, {"layer.weight_scale", at::ones({kOut, 16})}}),
              HasSubstr("groups of 32, 64 or 128"));
  EXPECT_THAT(refused({{"layer.weight", int4},
                       {"layer.weight_scale", at::ones({kOut, 8}).to(at::kFloat8_e4m3fn)}}),
              HasSubstr("4-bit floating-point checkpoints are not read"));
  EXPECT_THAT(
      refused({{"layer.weight", int8.narrow(0, 0, 3)}, {"layer.weight_scale", at::ones({1})}}),
      HasSubstr("the config asks for [192, 256], the file has [3, 256]"));
  EXPECT_THAT(refused({{"layer.weight", int8},
                       {"layer.weight_scale", at::ones({kOut})},
                       {"layer.weight_zero_point", at::zeros({kOut})}}),
              HasSubstr("layer.weight_zero_point [192]"));
  EXPECT_THAT(refused({{"layer.weight", weight}, {"layer.bias", at::zeros({kOut}, at::kChar)}}),
              AllOf(HasSubstr("layer.bias"), HasSubstr("needs floating-point numbers")));
}

TEST(StoredLinear, ScalesThatAreNoScalesAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const QuantType type : test::all_quant_types()) {
    const LinearWeight held = stored(type);
    for (const auto& [bad, shown] :
         {std::pair(nan, "nan"), {infinity, "inf"}, {-infinity, "-inf"}, {-0.5, "-0.5"}}) {
      at::Tensor scales = held.scales.clone();
      scales.view({-1})[scales.numel() / 2] = bad;
      LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", scales}});
      for (const bool list_only : {false, true}) {
        WeightOptions options = with_type(type);
        options.list_only = list_only;
        test::expect_error<WeightError>(
            [&] { file.load(kIn, kOut, type, options); },
            AllOf(HasSubstr("layer.weight_scale] scales must be finite and not negative: got " +
                            std::string(shown) + " among"),
                  HasSubstr("take another copy")));
      }
    }
  }
}

/// Writers that divide by the largest magnitude give zero to what is all zero, with any value.
TEST(StoredLinear, AScaleOfZeroStandsForZeros) {
  const at::Tensor x = tiny_weight("x", {1, 5, kIn});
  for (const QuantType type : test::all_quant_types()) {
    const LinearWeight held = stored(type);
    LinearWeight zeroed = held;
    zeroed.scales = held.scales.clone();
    zeroed.scales.view({-1})[0] = 0;
    LayerFile file({{"layer.weight", zeroed.values}, {"layer.weight_scale", zeroed.scales}});
    const at::Tensor want =
        at::linear(test::rounded_input(x, type), dequantized(zeroed, at::kFloat).to(at::kDouble));
    const at::Tensor y = file.load(kIn, kOut, type)(x);
    EXPECT_LE(test::relative_error(y, want), test::reference_tolerance(type)) << name_of(type);
    if (type == QuantType::kInt4WeightOnly || type == QuantType::kFloat8PerBlock) continue;
    EXPECT_EQ(y.select(-1, 0).abs().max().item<float>(), 0) << name_of(type);
  }
}

/// Sums of 32 bits overflow above 133,000 products of the largest values.
TEST(StoredLinear, TooManyInputsForExactSumsAreNotRounded) {
  constexpr int64_t kMany = 140000;
  LayerFile file({{"layer.weight", at::full({3, kMany}, 127, at::kChar)},
                  {"layer.weight_scale", at::full({3}, 0.01)}});
  const at::Tensor x = at::ones({1, 2, kMany});
  for (const QuantType type : {QuantType::kInt8PerRow, QuantType::kInt8PerTensor}) {
    const Linear layer = file.load(kMany, 3, type);
    EXPECT_EQ(file.layers().at(0).type, QuantType::kInt8WeightOnly);
    EXPECT_THAT(file.layers().at(0).note, HasSubstr("140000 inputs pass the 65536"));
    // So many fp32 additions of one sign; an overflow is 1.9 away.
    EXPECT_LE(test::relative_error(layer(x), at::full({1, 2, 3}, 1.27 * kMany)), 2e-3);
  }
}

TEST(FusedLinear, LayersOfOneInputMayDifferInType) {
  const LinearWeight key = stored(QuantType::kFloat8WeightOnly);
  LayerFile file({{"layer.q.weight", tiny_weight("w.weight", {kOut, kIn})},
                  {"layer.k.weight", key.values},
                  {"layer.k.weight_scale", key.scales},
                  {"layer.v.weight", tiny_weight("w.weight", {kOut, kIn}).to(at::kBFloat16)},
                  {"layer.q.bias", tiny_weight("q.bias", {kOut})},
                  {"layer.k.bias", tiny_weight("k.bias", {kOut})},
                  {"layer.v.bias", tiny_weight("v.bias", {kOut})}});
  WeightOptions options = with_type(std::nullopt);
  options.quantization.rules = {{.layers = "layer.q", .type = QuantType::kInt8PerRow}};
  const WeightLoader loader(file.store(), options);
  const WeightScope scope = loader.root() / "layer";
  const Linear all({scope / "q", scope / "k", scope / "v"}, kIn, kOut);
  loader.finish();
  const at::Tensor x = tiny_weight("x", {2, 5, kIn});
  std::vector<at::Tensor> parts;
  for (const char* name : {"q", "k", "v"}) {
    parts.push_back(
        Linear(WeightLoader(file.store(), options).root() / "layer" / name, kIn, kOut)(x));
  }
  EXPECT_TRUE(test::same_values(all(x), at::cat(parts, -1)));
  ASSERT_EQ(loader.linear_layers().size(), 3u);
  EXPECT_EQ(loader.linear_layers()[0].type, QuantType::kInt8PerRow);
  EXPECT_EQ(loader.linear_layers()[1].type, QuantType::kFloat8WeightOnly);
  EXPECT_EQ(loader.linear_layers()[2].type, std::nullopt);
}

TEST(FusedLinear, EqualsItsPartsInEveryType) {
  std::map<std::string, at::Tensor> tensors;
  for (const char* name : {"q", "k", "v"}) {
    const std::string layer = std::string("layer.") + name;
    tensors[layer + ".weight"] = tiny_weight(layer + ".weight", {60, kIn});
    tensors[layer + ".bias"] = tiny_weight(layer + ".bias", {60});
  }
  LayerFile file(tensors);
  const at::Tensor x = tiny_weight("x", {2, 5, kIn});
  for (const QuantType type : test::all_quant_types()) {
    const WeightLoader loader(file.store(), with_type(type));
    const WeightScope scope = loader.root() / "layer";
    const Linear all({scope / "q", scope / "k", scope / "v"}, kIn, 60);
    std::vector<at::Tensor> parts;
    for (const char* name : {"q", "k", "v"}) parts.push_back(Linear(scope / name, kIn, 60)(x));
    EXPECT_LE(test::relative_error(all(x), at::cat(parts, -1)), 1e-6) << name_of(type);
  }
}

TEST(ListOnly, LayersSayWhatTheyWouldBecomeAndHoldNothing) {
  LayerFile file({{"layer.weight", tiny_weight("w.weight", {kOut, kIn})}});
  WeightOptions options = with_type(QuantType::kInt4WeightOnly);
  options.list_only = true;
  std::vector<std::string> told;
  options.on_linear_layer = [&](const QuantizedLayer& layer) { told.push_back(layer.layer); };
  file.load(kIn, kOut, std::nullopt, options);
  EXPECT_THAT(told, ::testing::ElementsAre("layer"));
  EXPECT_EQ(file.layers().at(0).type, QuantType::kInt4WeightOnly);
  EXPECT_EQ(file.layers().at(0).bytes, 0);
}

}  // namespace
}  // namespace cachedit::nn
