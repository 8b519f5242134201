// kExact where numbers or shapes are unusual: huge logits, NaN and infinity, empty rows, no keys.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernel_runner.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

using kernels::CpuIsa;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 1e-5 : 1e-2; }

double most_negative(at::ScalarType dtype) {
  if (dtype == at::kHalf) return -65504;
  return dtype == at::kFloat ? std::numeric_limits<float>::lowest() : -3.3895313892515355e38;
}

/// [B, Nq, H]: whether the row holds anything that is not finite.
at::Tensor bad_rows(const at::Tensor& out) { return out.isfinite().all(-1).logical_not(); }

class EdgeAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  AttentionInputs inputs(int64_t queries, int64_t keys, uint64_t seed, int64_t head_dim = 64) {
    const AttentionShape shape{
        .heads = 2, .kv_heads = 2, .queries = queries, .keys = keys, .head_dim = head_dim};
    return random_attention_inputs(shape, GetParam(), seed);
  }

  /// Compares out with float64 on every instruction level.
  void expect_close(const AttentionInputs& in) {
    const AttentionOutputs want = reference_attention(in);
    for (const CpuIsa isa : supported_isas()) {
      SCOPED_TRACE(describe(in, {.isa = isa}));
      const AttentionOutputs got = run_kernel(in, {.isa = isa});
      EXPECT_LE(relative_l1(got.out, want.out), tolerance(GetParam()));
      EXPECT_TRUE(same_values(got.lse == -kInfinity, want.lse == -kInfinity));
      EXPECT_FALSE(got.lse.isnan().any().item<bool>());
    }
  }

  /// Rows that are not finite are those of ATen in fp32. (Its 16-bit kernels turn some infinities
  /// into finite rows.)
  void expect_bad_rows_of_aten(const AttentionInputs& in) {
    AttentionInputs fp32 = in;
    for (at::Tensor* t : {&fp32.query, &fp32.key, &fp32.value}) *t = t->to(at::kFloat);
    const at::Tensor want = bad_rows(aten_attention(fp32));
    ASSERT_TRUE(want.any().item<bool>()) << "the case does not test what it should";
    for (const CpuIsa isa : supported_isas()) {
      SCOPED_TRACE(describe(in, {.isa = isa}));
      EXPECT_TRUE(same_values(bad_rows(run_kernel(in, {.isa = isa}).out), want));
    }
  }
};

TEST_P(EdgeAttention, LogitsOfTenThousand) {
  // Exact in every dtype: each logit is +-1e4 or 0, the weights are 0 or 1 / (number of +1e4).
  AttentionInputs in = inputs(70, 300, 1);
  in.query.zero_();
  in.query.select(3, 2).fill_(100);
  in.query.slice(1, 0, 70, 3).neg_();
  in.key.zero_();
  in.key.slice(1, 5, 300, 7).select(2, 0).select(2, 2).fill_(100);
  in.key.slice(1, 200, 300, 3).select(2, 1).select(2, 2).fill_(-100);
  in.scale = 1;
  expect_close(in);
  in.scale = -1;
  expect_close(in);
}

TEST_P(EdgeAttention, HugeRandomLogitsStayFinite) {
  AttentionInputs in = inputs(65, 500, 2);
  in.scale = 1000;
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(describe(in, {.isa = isa}));
    const AttentionOutputs got = run_kernel(in, {.isa = isa});
    // A logit of 1e4 has an fp32 rounding step of 1e-3, which is then the error of a weight.
    EXPECT_LE(relative_l1(got.out, reference_attention(in).out), 2e-2);
    EXPECT_TRUE(got.lse.isfinite().all().item<bool>());
  }
}

TEST_P(EdgeAttention, EqualKeysGiveTheMean) {
  AttentionInputs in = inputs(33, 257, 3);
  in.key.copy_(in.key.narrow(1, 0, 1).expand_as(in.key).clone());
  expect_close(in);
  in.key.fill_(0);
  expect_close(in);
}

TEST_P(EdgeAttention, ScaleZeroAndNegative) {
  AttentionInputs in = inputs(33, 140, 4);
  in.scale = 0;
  expect_close(in);
  in.scale = -0.25;
  expect_close(in);
  in.causal = true;
  expect_close(in);
}

TEST_P(EdgeAttention, OneKeyGivesItsValue) {
  const AttentionInputs in = inputs(40, 1, 5);
  for (const CpuIsa isa : supported_isas()) {
    const at::Tensor got = run_kernel(in, {.isa = isa}).out;
    EXPECT_TRUE(same_values(got, in.value.expand_as(got))) << kernels::isa_name(isa);
  }
}

TEST_P(EdgeAttention, NoKeysGiveZeros) {
  for (const CpuIsa isa : supported_isas()) {
    for (const bool causal : {false, true}) {
      AttentionInputs in = inputs(37, 0, 6);
      in.causal = causal;
      const AttentionOutputs got = run_kernel(in, {.isa = isa, .strided_out = true});
      EXPECT_TRUE(same_values(got.out, at::zeros_like(got.out))) << kernels::isa_name(isa);
      EXPECT_TRUE((got.lse == -kInfinity).all().item<bool>()) << kernels::isa_name(isa);
    }
  }
}

TEST_P(EdgeAttention, NoQueriesNoBatchNoHeadsDoNothing) {
  for (const CpuIsa isa : supported_isas()) {
    EXPECT_EQ(run_kernel(inputs(0, 20, 7), {.isa = isa}).out.numel(), 0);
    EXPECT_EQ(run_kernel(inputs(0, 0, 7), {.isa = isa}).out.numel(), 0);
    const AttentionShape no_batch{.batch = 0, .queries = 5, .keys = 5, .head_dim = 16};
    EXPECT_EQ(
        run_kernel(random_attention_inputs(no_batch, GetParam(), 7), {.isa = isa}).out.numel(), 0);
  }
}

/// FR-04. A bool row and a row of -inf see nothing; a row of the most negative finite number still
/// sees every key, equally.
TEST_P(EdgeAttention, FullyMaskedRows) {
  for (const int64_t keys : {6, 300}) {
    AttentionInputs in = inputs(4, keys, 8, 8);
    in.mask = at::ones({1, 1, 4, keys}, at::kBool);
    in.mask[0][0][2].fill_(false);
    expect_close(in);

    for (const at::ScalarType dtype : {at::kFloat, GetParam()}) {
      in.mask = at::zeros({1, 1, 4, keys}, dtype);
      in.mask[0][0][2].fill_(-kInfinity);
      expect_close(in);
      in.mask[0][0][2].fill_(most_negative(dtype));
      expect_close(in);
      // The rest of such a row may take part: then only the rest counts.
      in.mask[0][0][2][keys - 1].fill_(0);
      expect_close(in);
    }
  }
}

/// The first and the last key blocks of a row masked, so that a running maximum of -inf meets both.
TEST_P(EdgeAttention, LongMaskedStretches) {
  AttentionInputs in = inputs(130, 1000, 9);
  for (const auto& [begin, end] : {std::pair{0, 700}, {300, 1000}, {0, 999}, {1, 1000}}) {
    in.mask = at::ones({1, 1, 1, 1000}, at::kBool);
    in.mask.slice(3, begin, end).fill_(false);
    expect_close(in);
    at::Tensor bias = at::zeros({1, 1, 130, 1000}, at::kFloat);
    bias.slice(3, begin, end).slice(2, 0, 130, 2).fill_(-kInfinity);
    bias.slice(3, begin, end).slice(2, 1, 130, 2).fill_(most_negative(at::kFloat));
    in.mask = bias;
    expect_close(in);
  }
}

TEST_P(EdgeAttention, NanPoisonsTheRowsThatItPoisonsInAten) {
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    SCOPED_TRACE(bad);
    AttentionInputs in = inputs(70, 200, 10);
    in.query[0][33][1][5] = bad;
    expect_bad_rows_of_aten(in);
    in = inputs(70, 200, 11);
    in.key[0][150][0][63] = bad;
    expect_bad_rows_of_aten(in);
    in = inputs(70, 200, 12);
    in.value[0][199][1][0] = bad;
    expect_bad_rows_of_aten(in);
  }
}

TEST_P(EdgeAttention, NanInAnAdditiveMaskShows) {
  AttentionInputs in = inputs(70, 200, 13);
  in.mask = at::zeros({1, 1, 70, 200}, at::kFloat);
  in.mask[0][0][20][100] = kNan;
  expect_bad_rows_of_aten(in);
  in.mask[0][0][20][100] = kInfinity;
  expect_bad_rows_of_aten(in);
}

/// NaN in a key that the causal rule hides from a row must not reach the row through the query
/// block that they share. (For masked values ATen lets it through, so nothing is asked there.)
TEST_P(EdgeAttention, HiddenKeysDoNotPoisonCausalRows) {
  AttentionInputs in = inputs(200, 200, 14);
  in.causal = true;
  in.key[0][150].fill_(kNan);
  for (const CpuIsa isa : supported_isas()) {
    const at::Tensor bad = bad_rows(run_kernel(in, {.isa = isa}).out);
    EXPECT_FALSE(bad.slice(1, 0, 150).any().item<bool>()) << kernels::isa_name(isa);
    EXPECT_TRUE(bad.slice(1, 150, 200).all().item<bool>()) << kernels::isa_name(isa);
  }
}

/// The metamorphic half of FR-01: what masked keys and values hold is of no account.
TEST_P(EdgeAttention, MaskedKeysAndValuesDoNotMatter) {
  AttentionInputs in = inputs(70, 200, 15);
  in.mask = seeded_bool({1, 1, 1, 200}, 0.6, 16);
  const at::Tensor hidden = in.mask.view({1, 200, 1, 1}).logical_not();
  AttentionInputs other = in;
  other.key = in.key.masked_fill(hidden, 1e4);
  other.value = in.value.masked_fill(hidden, 1e4);
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(describe(in, {.isa = isa}));
    EXPECT_TRUE(same_values(run_kernel(in, {.isa = isa}).out, run_kernel(other, {.isa = isa}).out));
  }
}

TEST_P(EdgeAttention, AnAllTrueMaskChangesNothing) {
  AttentionInputs in = inputs(70, 200, 17);
  for (const CpuIsa isa : supported_isas()) {
    AttentionInputs masked = in;
    masked.mask = at::ones({1, 1, 1, 200}, at::kBool);
    EXPECT_TRUE(same_values(run_kernel(in, {.isa = isa}).out, run_kernel(masked, {.isa = isa}).out))
        << kernels::isa_name(isa);
  }
}

TEST_P(EdgeAttention, SubnormalAndTinyInputs) {
  AttentionInputs in = inputs(20, 50, 18);
  in.value = in.value * (GetParam() == at::kHalf ? 1e-3 : 1e-30);
  expect_close(in);
  in.query = in.query * 1e-6;
  expect_close(in);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EdgeAttention,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) {
                           if (test.param == at::kBFloat16) return "bf16";
                           return test.param == at::kHalf ? "fp16" : "fp32";
                         });

}  // namespace
}  // namespace cachedit::test
