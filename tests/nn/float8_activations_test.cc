// Activations rounded for float8 W8A8 by the kernel, against the definition by ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "nn/linear_forms.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using test::same_values;
using test::tiny_weight;

class Float8Activations : public ::testing::TestWithParam<QuantType> {};

INSTANTIATE_TEST_SUITE_P(Types, Float8Activations,
                         ::testing::Values(QuantType::kFloat8PerRow, QuantType::kFloat8PerTensor,
                                           QuantType::kFloat8PerBlock),
                         [](const auto& test) { return std::string(name_of(test.param)); });

at::Tensor activations(at::IntArrayRef shape, at::ScalarType dtype) {
  return tiny_weight("x", shape).pow(3).to(dtype);
}

TEST_P(Float8Activations, AreThoseOfTheDefinition) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {1, 100, 128, 300}) {
      const at::Tensor x = activations({2, 5, width}, dtype);
      const at::Tensor want = reference::rounded_to_float8(x, GetParam());
      EXPECT_TRUE(same_values(rounded_to_float8(x, {}, GetParam()), want)) << dtype << width;
      const at::Tensor strided = at::cat({x, x}, -1).narrow(2, 0, width);
      EXPECT_TRUE(same_values(rounded_to_float8(strided, {}, GetParam()), want));
      const at::Tensor transposed = x.transpose(1, 2).contiguous().transpose(1, 2);
      EXPECT_TRUE(same_values(rounded_to_float8(transposed, {}, GetParam()), want));
    }
  }
}

// The first part ends between two scales of float8_per_block, and within one.
TEST_P(Float8Activations, OfTwoPartsAreThoseOfBothTogether) {
  for (const int64_t width : {128, 100}) {
    const at::Tensor x = activations({2, 5, width}, at::kBFloat16);
    const at::Tensor second = activations({2, 5, 260}, at::kBFloat16) * 3;
    const at::Tensor want = reference::rounded_to_float8(at::cat({x, second}, -1), GetParam());
    EXPECT_TRUE(same_values(rounded_to_float8(x, second, GetParam()), want)) << width;
    EXPECT_TRUE(same_values(rounded_to_float8(second, x, GetParam()),
                            reference::rounded_to_float8(at::cat({second, x}, -1), GetParam())));
  }
}

TEST_P(Float8Activations, TakeTheScaleOfAWholeRowWhereTheyAreAShare) {
  const at::Tensor x = activations({2, 5, 128}, at::kBFloat16);
  const at::Tensor largest = x.abs().amax(-1).to(at::kFloat) * 2.5;
  const at::Tensor want = reference::rounded_to_float8(x, GetParam(), largest);
  EXPECT_TRUE(same_values(rounded_to_float8(x, {}, GetParam(), largest), want));
  const bool per_block = GetParam() == QuantType::kFloat8PerBlock;
  EXPECT_EQ(same_values(rounded_to_float8(x, {}, GetParam()), want), per_block);
}

TEST_P(Float8Activations, OfNoRowsAreNone) {
  const at::Tensor none = at::zeros({2, 0, 128});
  EXPECT_EQ(rounded_to_float8(none, {}, GetParam()).sizes(), none.sizes());
}

}  // namespace
}  // namespace cachedit::nn
