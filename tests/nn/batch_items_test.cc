// Layers of a batch: no item depends on the others, however many there are; and the factor of gated
// MLPs.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "cachedit/error.h"
#include "quantized_reference.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using test::LayerFile;
using test::same_values;
using test::tiny_weight;
using ::testing::HasSubstr;

LayerFile layer_file(int64_t in, int64_t out) {
  return LayerFile({{"layer.weight", tiny_weight("w.weight", {out, in})},
                    {"layer.bias", tiny_weight("w.bias", {out})}});
}

std::vector<std::optional<QuantType>> forms() {
  std::vector<std::optional<QuantType>> all = {std::nullopt};
  for (const QuantType type : test::all_quant_types()) all.emplace_back(type);
  return all;
}

std::string form_name(const std::optional<QuantType>& type) {
  return type ? std::string(name_of(*type)) : "plain";
}

class EveryForm : public ::testing::TestWithParam<std::optional<QuantType>> {};
INSTANTIATE_TEST_SUITE_P(Forms, EveryForm, ::testing::ValuesIn(forms()),
                         [](const auto& test) { return form_name(test.param); });

/// Items that differ in size, so that a scale shared by two of them shows.
at::Tensor unlike_items(at::IntArrayRef shape) {
  at::Tensor x = tiny_weight("x", shape).clone();
  for (int64_t b = 0; b < shape[0]; ++b) x[b] *= 1 + 7 * b;
  return x;
}

// Kernels choose by the number of rows: few in an item and many together is where one item could
// come out another way than alone.
TEST_P(EveryForm, ItemsAreWhatTheyAreAlone) {
  auto layers = layer_file(256, 96);
  const Linear layer = layers.load(256, 96, GetParam());
  for (const int64_t rows : {1, 7, 16, 40}) {
    const at::Tensor x = unlike_items({5, rows, 256});
    const at::Tensor all = layer(x);
    for (int64_t b = 0; b < 5; ++b) {
      EXPECT_TRUE(same_values(all.narrow(0, b, 1), layer(x.narrow(0, b, 1)))) << rows << " " << b;
    }
  }
}

TEST_P(EveryForm, VectorsAreItemsOfTheirOwn) {
  auto layers = layer_file(256, 96);
  const Linear layer = layers.load(256, 96, GetParam());
  const at::Tensor x = unlike_items({6, 5, 256}) * tiny_weight("size", {1, 5, 1});
  const at::Tensor all = each_alone(layer, x);
  ASSERT_EQ(all.sizes(), at::IntArrayRef({6, 5, 96}));
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      EXPECT_TRUE(same_values(all[i][j], layer(x[i][j].view({1, 1, 256})).flatten()));
    }
  }
  EXPECT_TRUE(same_values(each_alone(layer, x[0]), all[0]));
}

TEST_P(EveryForm, AFactorMultipliesWhatIsActivated) {
  auto layers = layer_file(128, 96);
  for (const bool packed : {true, false}) {
    const Linear layer =
        layers.load(128, 96, GetParam(), {.dtype = at::kFloat, .pack_linear = packed});
    const at::Tensor x = tiny_weight("x", {2, 7, 128}), factor = tiny_weight("f", {2, 7, 96});
    for (const Activation activation : {Activation::kSilu, Activation::kRelu}) {
      const at::Tensor want = factor * activate(activation, layer(x));
      const at::Tensor got = layer.run({.input = x, .activation = activation, .factor = factor});
      EXPECT_LE(test::relative_error(got, want), 1e-6) << packed;
      at::Tensor buffer = at::cat({factor, factor}, -1);
      const at::Tensor place = buffer.narrow(-1, 0, 96);  // gaps between rows and items
      layer.run({.input = x, .out = place, .activation = activation, .factor = place});
      EXPECT_TRUE(same_values(place, got));
      EXPECT_TRUE(same_values(buffer.narrow(-1, 96, 96), factor));
    }
    EXPECT_EQ(layer.run({.input = x[0], .factor = factor[0]}).sizes(), factor[0].sizes());
    test::expect_error<InputError>(
        [&] { layer.run({.input = x, .residual = factor, .factor = factor}); },
        HasSubstr("a residual or a factor"));
  }
}

}  // namespace
}  // namespace cachedit::nn
