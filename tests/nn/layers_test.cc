#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cachedit/error.h"
#include "nn/activation.h"
#include "nn/modulation.h"
#include "nn/rotary.h"
#include "nn/streams.h"
#include "nn/timestep_embedding.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

at::Tensor noise(const char* name, at::IntArrayRef shape) {
  return test::tiny_weight(name, shape) * 3;
}

class ModulationBatch : public ::testing::TestWithParam<int64_t> {};

// Every batch item has vectors of its own.
TEST_P(ModulationBatch, EqualsItsDefinitionInFp64) {
  const at::Tensor x = noise("x", {GetParam(), 5, 16});
  const at::Tensor scale = noise("scale", {GetParam(), 16});
  const at::Tensor shift = noise("shift", {GetParam(), 16});
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor normed = at::layer_norm(wide, {16}, {}, {}, 1e-6);
  const at::Tensor want =
      normed * (scale.to(at::kDouble).unsqueeze(1) + 1) + shift.to(at::kDouble).unsqueeze(1);
  EXPECT_LE(test::relative_error(modulated_layer_norm(x, scale, shift), want), 1e-6);
  EXPECT_LE(test::relative_error(add_gated(x, scale, x),
                                 wide + scale.to(at::kDouble).unsqueeze(1) * wide),
            1e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ModulationBatch, ::testing::Values(1, 3));

TEST(Rotary, TurnsNeighbouringPairsByPositionTimesFrequency) {
  const at::Tensor positions = at::tensor({0.0f, 0.0f, 2.0f, 5.0f}).view({2, 2});
  const RotaryEmbedding rotary = make_rotary(positions, {4, 2});
  const at::Tensor x = noise("x", {1, 2, 3, 6});
  const at::Tensor got = apply_rotary(x, rotary);
  EXPECT_LE(test::max_abs_error(got.select(1, 0), x.select(1, 0)), 0.0) << "position 0 stays";
  const double angles[3] = {2.0, 2.0 * std::pow(10000.0, -0.5), 5.0};
  for (int64_t head = 0; head < 3; ++head) {
    for (int64_t pair = 0; pair < 3; ++pair) {
      const double a = x[0][1][head][2 * pair].item<double>();
      const double b = x[0][1][head][2 * pair + 1].item<double>();
      const double c = std::cos(angles[pair]), s = std::sin(angles[pair]);
      EXPECT_NEAR(got[0][1][head][2 * pair].item<double>(), a * c - b * s, 1e-6);
      EXPECT_NEAR(got[0][1][head][2 * pair + 1].item<double>(), b * c + a * s, 1e-6);
    }
  }
  EXPECT_EQ(apply_rotary(x.to(at::kBFloat16), rotary).scalar_type(), at::kBFloat16);
}

TEST(Rotary, RefusesAxesThatDoNotFit) {
  EXPECT_THROW(make_rotary(at::zeros({4, 2}), {4, 4, 4}), ConfigError);
  EXPECT_THROW(make_rotary(at::zeros({4, 2}), {4, 3}), ConfigError);
}

TEST(Streams, SplitAndJoinShareOneBuffer) {
  for (const int64_t batch : {1, 2}) {
    const at::Tensor joint = noise("joint", {batch, 7, 4});
    const Streams streams = split_streams(joint, 3);
    EXPECT_EQ(streams.encoder.size(1), 3);
    EXPECT_EQ(streams.hidden.size(1), 4);
    const at::Tensor joined = join_streams(streams);
    EXPECT_EQ(joined.const_data_ptr(), joint.const_data_ptr()) << "a copy was made";
    EXPECT_LE(test::max_abs_error(joined, joint), 0.0);
  }
}

TEST(Streams, JoinCopiesWhatDoesNotLieTogether) {
  const at::Tensor text = noise("text", {2, 3, 4}), image = noise("image", {2, 5, 4});
  const at::Tensor want = at::cat({text, image}, 1);
  EXPECT_LE(test::max_abs_error(join_streams({.hidden = image, .encoder = text}), want), 0.0);
  // Both are views of one buffer here, but with a gap, in the wrong order, or overlapping.
  const at::Tensor joint = noise("joint", {2, 9, 4});
  for (const auto& [first, second] : {std::pair{0, 5}, {5, 0}, {0, 2}}) {
    const Streams odd{.hidden = joint.narrow(1, second, 4), .encoder = joint.narrow(1, first, 3)};
    EXPECT_LE(test::max_abs_error(join_streams(odd), at::cat({odd.encoder, odd.hidden}, 1)), 0.0);
  }
}

TEST(SinusoidalEmbedding, CosThenSin) {
  const at::Tensor got = sinusoidal_embedding(at::tensor({0.0f, 250.0f}), 8);
  ASSERT_EQ(got.sizes(), at::IntArrayRef({2, 8}));
  for (int64_t i = 0; i < 4; ++i) {
    const double angle = 250.0 * std::pow(10000.0, -static_cast<double>(i) / 4);
    EXPECT_NEAR(got[0][i].item<double>(), 1.0, 1e-7);
    EXPECT_NEAR(got[1][i].item<double>(), std::cos(angle), 2e-5);
    EXPECT_NEAR(got[1][4 + i].item<double>(), std::sin(angle), 2e-5);
  }
}

TEST(Activation, NamesAndValues) {
  const at::Tensor x = at::tensor({-1.0f, 0.5f});
  const auto at_half = [&](const char* name) {
    return activate(parse_activation(name, "test"), x)[1].item<double>();
  };
  EXPECT_NEAR(at_half("gelu"), 0.5 * 0.5 * (1 + std::erf(0.5 / std::sqrt(2.0))), 1e-6);
  EXPECT_NEAR(at_half("quick_gelu"), 0.5 / (1 + std::exp(-1.702 * 0.5)), 1e-6);
  EXPECT_NEAR(at_half("silu"), 0.5 / (1 + std::exp(-0.5)), 1e-6);
  EXPECT_NEAR(at_half("relu"), 0.5, 0);
  EXPECT_NE(at_half("gelu_new"), at_half("gelu"));
  EXPECT_THROW(parse_activation("mish", "test"), ConfigError);
}

}  // namespace
}  // namespace cachedit::nn
