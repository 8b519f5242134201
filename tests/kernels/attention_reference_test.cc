// The reference that every other attention test leans on, against hand-worked values and ATen.
#include "support/attention_reference.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(AttentionReference, HandWorkedCase) {
  // Logits 0 and ln 3: weights 1/4 and 3/4.
  const AttentionInputs in{.query = at::tensor({1.0}, at::kDouble).view({1, 1, 1, 1}),
                           .key = at::tensor({0.0, std::log(3)}, at::kDouble).view({1, 2, 1, 1}),
                           .value = at::tensor({4.0, 8.0}, at::kDouble).view({1, 2, 1, 1})};
  const AttentionOutputs result = reference_attention(in);
  EXPECT_NEAR(result.out.item<double>(), 7, 1e-12);
  EXPECT_NEAR(result.lse.item<double>(), std::log(4), 1e-12);
}

TEST(AttentionReference, EqualsAtenWithEveryMask) {
  const AttentionShape shape{
      .batch = 2, .heads = 6, .kv_heads = 2, .queries = 9, .keys = 13, .head_dim = 20};
  AttentionInputs in = random_attention_inputs(shape, at::kFloat, 1);
  EXPECT_LE(relative_l1(aten_attention(in), reference_attention(in).out), 1e-6);
  in.mask = seeded_bool({2, 1, 1, 13}, 0.5, 2);
  EXPECT_LE(relative_l1(aten_attention(in), reference_attention(in).out), 1e-6);
  in.mask = seeded_normal({1, 6, 9, 13}, at::kFloat, 3);
  EXPECT_LE(relative_l1(aten_attention(in), reference_attention(in).out), 1e-6);
  in.mask.reset();
  in.scale = -0.3;
  EXPECT_LE(relative_l1(aten_attention(in), reference_attention(in).out), 1e-6);
  in.causal = true;
  for (const int64_t offset : {0, 4, -4}) {
    in.causal_offset = offset;
    EXPECT_LE(relative_l1(aten_attention(in), reference_attention(in).out), 1e-6) << offset;
  }
}

TEST(AttentionReference, CausalAndGqaMeanWhatAtenMeans) {
  const AttentionShape shape{.heads = 6, .kv_heads = 2, .queries = 9, .keys = 13, .head_dim = 8};
  AttentionInputs in = random_attention_inputs(shape, at::kFloat, 4);
  in.causal = true;
  const at::Tensor aten = at::scaled_dot_product_attention(
                              in.query.transpose(1, 2), in.key.transpose(1, 2),
                              in.value.transpose(1, 2), {}, 0.0, /*is_causal=*/true, std::nullopt,
                              /*enable_gqa=*/true)
                              .transpose(1, 2);
  EXPECT_LE(relative_l1(aten, reference_attention(in).out), 1e-6);
}

TEST(AttentionReference, RowsWithoutKeysAreZero) {
  AttentionInputs in = random_attention_inputs({.queries = 3, .keys = 5}, at::kFloat, 5);
  in.causal = true;
  in.causal_offset = -2;  // rows 0 and 1 see nothing
  AttentionOutputs result = reference_attention(in);
  EXPECT_EQ(max_abs_error(result.out.narrow(1, 0, 2), at::full({1, 2, 1, 64}, 0.0)), 0);
  EXPECT_GT(result.out.select(1, 2).abs().sum().item<double>(), 0);
  EXPECT_EQ(result.lse[0][0][1].item<double>(), -kInfinity);
  EXPECT_TRUE(std::isfinite(result.lse[0][0][2].item<double>()));

  in = random_attention_inputs({.queries = 3, .keys = 0}, at::kFloat, 6);
  result = reference_attention(in);
  EXPECT_EQ(max_abs_error(result.out, at::full({1, 3, 1, 64}, 0.0)), 0);
  EXPECT_TRUE((result.lse == -kInfinity).all().item<bool>());
}

TEST(AttentionReference, LayoutsKeepValuesAndDifferInMemory) {
  const AttentionInputs in =
      random_attention_inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 4}, at::kHalf, 7);
  for (const Layout layout :
       {Layout::kContiguous, Layout::kFusedQkv, Layout::kHeadsFirst, Layout::kPadded}) {
    const at::Tensor query = in_layout(in.query, layout);
    EXPECT_TRUE(same_values(query, in.query));
    EXPECT_EQ(query.is_contiguous(), layout == Layout::kContiguous);
    EXPECT_EQ(query.stride(3), 1);
  }
}

TEST(AttentionReference, OutliersLeaveTheSoftmaxAsItIs) {
  AttentionInputs in = random_attention_inputs({.queries = 5, .keys = 40}, at::kDouble, 8);
  const at::Tensor before = reference_attention(in).out;
  in.key = with_channel_outliers(in.key.to(at::kFloat)).to(at::kDouble);
  EXPECT_GT(in.key.abs().max().item<double>(), 90);
  EXPECT_LE(relative_l1(reference_attention(in).out, before), 1e-4);
}

TEST(TensorCompare, RelativeL1AndCosine) {
  const at::Tensor want = at::tensor({3.0, -4.0}), got = at::tensor({3.0, -3.0});
  EXPECT_NEAR(relative_l1(got, want), 1.0 / 7, 1e-12);
  EXPECT_NEAR(cosine(got, want), 21 / (5 * std::sqrt(18)), 1e-12);
  EXPECT_EQ(cosine(at::tensor({0.0, NAN}), want), -1);
  EXPECT_EQ(relative_l1(at::tensor({0.0}), want), kInfinity);
  EXPECT_TRUE(same_values(at::tensor({1.0, NAN}), at::tensor({1.0, NAN})));
  EXPECT_FALSE(same_values(at::tensor({1.0, NAN}), at::tensor({1.0, 2.0})));
}

}  // namespace
}  // namespace cachedit::test
