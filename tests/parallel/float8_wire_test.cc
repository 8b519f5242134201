#include "parallel/float8_wire.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/attention_reference.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

at::Tensor there_and_back(const at::Tensor& t) {
  return unpack_float8(pack_float8(t), t.scalar_type());
}

TEST(Float8Wire, TakesAByteEachAndFourBytesARow) {
  const at::Tensor packed = pack_float8(test::seeded_normal({2, 3, 5, 16}, at::kBFloat16, 1));
  EXPECT_EQ(packed.sizes(), at::IntArrayRef({2, 3, 5, 20}));
  EXPECT_EQ(packed.scalar_type(), at::kByte);
  EXPECT_TRUE(packed.is_contiguous());
}

// e4m3 has three bits behind the point: half a step is 1/16 of the number, or, among its
// subnormals, 2^-10 of a range of 448.
TEST(Float8Wire, IsAsPreciseAsTheFormat) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const double magnitude : {1e-6, 1.0, 1e4}) {
      const at::Tensor t =
          (test::seeded_normal({2, 7, 3, 32}, at::kFloat, 2) * magnitude).to(dtype);
      const at::Tensor back = there_and_back(t);
      EXPECT_EQ(back.scalar_type(), dtype);
      EXPECT_TRUE(back.is_contiguous());
      const at::Tensor exact = t.to(at::kDouble), largest = exact.abs().amax(-1, true);
      const double output_rounding = dtype == at::kFloat || dtype == at::kDouble ? 0 : 0.005;
      // Numbers of fp16 near 1e-6 have steps of 6e-8.
      const double output_step = dtype == at::kHalf ? 6e-8 : 0;
      const at::Tensor bound = exact.abs() * (1 / 16. + output_rounding) +
                               largest * (1 / 448. / 1024 * 1.01) + output_step;
      EXPECT_TRUE(((back.to(at::kDouble) - exact).abs() <= bound).all().item<bool>())
          << dtype << " " << magnitude;
      EXPECT_GE(test::cosine(back, t), 0.999) << dtype << " " << magnitude;
    }
  }
}

TEST(Float8Wire, TheLargestNumberOfARowIsExact) {
  for (const double largest : {448.0, 1.0, 3e-39, 65504.0, 3e38}) {
    at::Tensor t = at::zeros({2, 1, 1, 4});
    t.select(-1, 1).fill_(largest);
    t.select(-1, 2).fill_(-largest);
    const at::Tensor back = there_and_back(t);
    // Below the normal numbers of fp32 the scale has a floor, 448 times above which rows are exact.
    EXPECT_LE(test::max_abs_error(back, t), largest < 1e-30 ? largest / 8 : largest * 1e-6);
  }
  // Rounding of the scale could reach past 448, which the format has no number for.
  const at::Tensor t = test::seeded_normal({4096, 1}, at::kFloat, 3);
  EXPECT_LE(test::relative_error(there_and_back(t), t), 1e-6);
}

TEST(Float8Wire, RowsOfZerosAndTinyNumbersAreFinite) {
  EXPECT_TRUE(at::equal(there_and_back(at::zeros({1, 3, 2, 8})), at::zeros({1, 3, 2, 8})));
  for (const double tiny : {1e-45, 1e-42, 1e-38}) {
    const at::Tensor t = at::full({1, 1, 1, 8}, tiny);
    // The scale is the smallest normal number, 1.2e-38, and the format's smallest one 2^-9.
    EXPECT_LE(test::max_abs_error(there_and_back(t), t), tiny / 16 + 1.2e-38 / 1024) << tiny;
  }
}

TEST(Float8Wire, EmptyTensorsStayEmpty) {
  EXPECT_EQ(there_and_back(at::zeros({1, 0, 2, 8})).sizes(), at::IntArrayRef({1, 0, 2, 8}));
}

// Nothing that was not finite comes out finite.
TEST(Float8Wire, WhatIsNotFiniteShows) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    at::Tensor t = test::seeded_normal({1, 2, 1, 4}, at::kFloat, 4);
    t[0][1][0][2] = bad;
    const at::Tensor back = there_and_back(t);
    EXPECT_TRUE(back.select(1, 1).isnan().any().item<bool>());
    EXPECT_FALSE(back.select(1, 0).isnan().any().item<bool>());
  }
}

TEST(Float8Wire, ReadsAnyStrides) {
  const at::Tensor t = test::seeded_normal({2, 3, 5, 8}, at::kFloat, 5);
  const at::Tensor swapped = t.transpose(1, 2);
  EXPECT_TRUE(at::equal(there_and_back(swapped), there_and_back(swapped.contiguous())));
  const at::Tensor packed = pack_float8(t);
  EXPECT_TRUE(at::equal(unpack_float8(packed.narrow(2, 1, 3), at::kFloat),
                        there_and_back(t).narrow(2, 1, 3)));
}

}  // namespace
}  // namespace cachedit::parallel
