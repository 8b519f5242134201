// The schemes with 8- and 4-bit numbers: how close they come on keys with channel outliers, and
// where their results are exact.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernel_runner.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

using kernels::AttentionScheme;
using kernels::CpuIsa;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Scheme {
  AttentionScheme scheme;
  double cosine;     ///< at least, to float64
  double lse_error;  ///< at most, for logits of a few units
  int64_t max_head_dim;
  int64_t exact_rows;  ///< first query rows that kExact computes
  int64_t exact_rows_causal;
};

constexpr Scheme kSchemes[] = {
    {AttentionScheme::kSage, 0.999, 0.05, 128, 0, 0},
    {AttentionScheme::kFp8, 0.999, 0.05, 1024, 256, 128},
    {AttentionScheme::kFp8PerBlock, 0.998, 0.1, 1024, 0, 0},
    {AttentionScheme::kFp4, 0.98, 0.5, 1024, 0, 0},
};

void PrintTo(const Scheme& s, std::ostream* out) { *out << scheme_name(s.scheme); }

/// Keys with outliers. Values have no mean: one that all tokens share would dominate the output and
/// hide every error of the weights.
AttentionInputs outlier_inputs(const AttentionShape& shape, at::ScalarType dtype, uint64_t seed) {
  AttentionInputs in = random_attention_inputs(shape, dtype, seed);
  in.key = with_channel_outliers(in.key);
  return in;
}

class LowBitAttention : public ::testing::TestWithParam<Scheme> {
 protected:
  KernelOptions options(CpuIsa isa) const { return {.scheme = GetParam().scheme, .isa = isa}; }

  /// Cosine of the quantized rows, and of lse where it is finite, on every instruction level.
  void expect_close(const AttentionInputs& in, double cosine_bound) {
    const Scheme& s = GetParam();
    const int64_t exact = in.causal ? s.exact_rows_causal : s.exact_rows;
    const int64_t first = in.query.size(1) > exact ? exact : 0;
    const auto quantized_rows = [&](const at::Tensor& out) {
      return out.slice(1, first, out.size(1));
    };
    const AttentionOutputs want = reference_attention(in);
    for (const CpuIsa isa : supported_isas()) {
      SCOPED_TRACE(describe(in, options(isa)));
      const AttentionOutputs got = run_kernel(in, options(isa));
      EXPECT_GE(cosine(quantized_rows(got.out), quantized_rows(want.out)), cosine_bound);
      EXPECT_TRUE(same_values(got.lse == -kInfinity, want.lse == -kInfinity));
      const at::Tensor error = (got.lse - want.lse).abs().masked_fill(want.lse == -kInfinity, 0);
      EXPECT_LE(error.max().item<double>(), s.lse_error);
    }
  }
  void expect_close(const AttentionInputs& in) { expect_close(in, GetParam().cosine); }
};

TEST_P(LowBitAttention, CloseOnKeysWithOutliers) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      if (head_dim > GetParam().max_head_dim) continue;
      const AttentionShape shape{
          .heads = 2, .kv_heads = 2, .queries = 333, .keys = 1000, .head_dim = head_dim};
      expect_close(outlier_inputs(shape, dtype, 1));
    }
  }
}

TEST_P(LowBitAttention, CloseOnEveryHeadDimensionAndLength) {
  uint64_t seed = 10;
  for (const int64_t head_dim : {8, 40, 64, 72, 96, 128, 160, 192, 256, 320, 512, 1024, 1, 7, 33}) {
    if (head_dim > GetParam().max_head_dim) continue;
    for (const auto& [queries, keys] :
         {std::pair{1, 37}, {1, 1}, {17, 128}, {128, 17}, {300, 129}, {65, 1000}}) {
      const AttentionShape shape{
          .heads = 4, .kv_heads = 2, .queries = queries, .keys = keys, .head_dim = head_dim};
      // A handful of numbers scatters more than a field of them.
      const double slack = queries * head_dim < 2000 ? 4 : 1.5;
      const AttentionInputs in = random_attention_inputs(shape, at::kBFloat16, ++seed);
      expect_close(in_layout(in, static_cast<Layout>(seed % 4)),
                   1 - slack * (1 - GetParam().cosine));
    }
  }
}

TEST_P(LowBitAttention, MasksAndCausal) {
  const AttentionShape shape{
      .batch = 2, .heads = 4, .kv_heads = 2, .queries = 290, .keys = 333, .head_dim = 72};
  AttentionInputs in = outlier_inputs(shape, at::kBFloat16, 40);
  in.causal = true;
  for (const int64_t offset : {0, 43, -100}) {
    in.causal_offset = offset;
    expect_close(in);
  }
  in.causal = false;
  in.causal_offset = 0;
  in.mask = seeded_bool({2, 1, 1, 333}, 0.6, 41);
  expect_close(in);
  in.mask = seeded_bool({2, 4, 290, 333}, 0.6, 42);
  in.mask[1][2][280].fill_(false);
  expect_close(in);
  // Wider logits leave fewer weights that count, so their errors average less.
  const double wide = 1 - 2 * (1 - GetParam().cosine);
  in.mask = seeded_normal({1, 1, 290, 333}, at::kFloat, 43);
  expect_close(in, wide);
  in.mask = seeded_normal({2, 4, 290, 333}, at::kBFloat16, 44);
  expect_close(in, wide);
  in.mask = at::zeros({1, 1, 290, 333}, at::kFloat);
  in.mask[0][0][270].fill_(-kInfinity);
  in.mask[0][0][271].fill_(std::numeric_limits<float>::lowest());
  expect_close(in);
}

/// All that is quantized is exact here: Q and K are +-1, V is +-1, and every weight is 0 or the
/// row's maximum. The integer sums reach D x 127 x 127, where 16-bit steps in between saturate.
TEST_P(LowBitAttention, ExactWhereTheFormatsAre) {
  for (const int64_t head_dim : {64, 128}) {
    AttentionInputs in = random_attention_inputs(
        {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 260, .head_dim = head_dim}, at::kFloat,
        50);
    in.query.fill_(1);
    in.query.slice(1, 0, 300, 3).fill_(-1);
    in.key.fill_(1);
    in.key.slice(1, 0, 260, 2).fill_(-1);  // as many as of the others, so that their mean is 0
    in.value = at::where(in.value > 0, 1.0, -1.0).to(at::kFloat);
    in.value.slice(1, 130, 260).copy_(in.value.slice(1, 0, 130).neg());  // mean 0 as well
    in.scale = 1;
    const AttentionOutputs want = reference_attention(in);
    for (const CpuIsa isa : supported_isas()) {
      SCOPED_TRACE(describe(in, options(isa)));
      const AttentionOutputs got = run_kernel(in, options(isa));
      EXPECT_LE(max_abs_error(got.out, want.out), 1e-3);
      EXPECT_LE(max_abs_error(got.lse, want.lse), 1e-2);
    }
  }
}

/// The integers are the same on every level; what is left is the rounding of fp32 steps, which now
/// and then moves a weight to the neighbouring 8- or 4-bit number.
TEST_P(LowBitAttention, LevelsAgree) {
  const AttentionInputs in = outlier_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 500, .head_dim = 128}, at::kBFloat16, 60);
  const AttentionOutputs portable = run_kernel(in, options(CpuIsa::kPortable));
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(describe(in, options(isa)));
    const AttentionOutputs got = run_kernel(in, options(isa));
    EXPECT_LE(relative_l1(got.out, portable.out), 5e-3);
    EXPECT_LE(max_abs_error(got.lse, portable.lse), 1e-3);
  }
}

/// Keys that a mask hides from every query must not reach the output through the means and scales
/// that are taken over keys.
TEST_P(LowBitAttention, MaskedKeysAndValuesDoNotMatter) {
  AttentionInputs in = random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 400, .head_dim = 64}, at::kFloat, 65);
  in.mask = seeded_bool({1, 1, 1, 400}, 0.7, 66);
  const at::Tensor hidden = in.mask.view({1, 400, 1, 1}).logical_not();
  in.key = in.key.masked_fill(hidden, 1e4);
  in.value = in.value.masked_fill(hidden, 1e4);
  expect_close(in, 1 - 2 * (1 - GetParam().cosine));
}

/// FR-06: the same offset in every key changes nothing.
TEST_P(LowBitAttention, MeanShiftedKeys) {
  const Scheme& s = GetParam();
  AttentionInputs in = random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 500, .head_dim = 128}, at::kFloat, 70);
  const AttentionOutputs want = reference_attention(in);
  in.key = in.key + 50;
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(describe(in, options(isa)));
    const AttentionOutputs got = run_kernel(in, options(isa));
    EXPECT_GE(cosine(got.out, want.out), s.cosine);
    EXPECT_LE(max_abs_error(got.lse, reference_attention(in).lse), s.lse_error);
  }
}

TEST_P(LowBitAttention, HugeLogitsAndEqualKeysAreFinite) {
  AttentionInputs in = random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 400, .head_dim = 64}, at::kFloat, 80);
  in.scale = 1000;
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(describe(in, options(isa)));
    const AttentionOutputs got = run_kernel(in, options(isa));
    EXPECT_TRUE(got.out.isfinite().all().item<bool>());
    EXPECT_LE(got.out.abs().max().item<double>(), 1.2 * in.value.abs().max().item<double>());
    EXPECT_TRUE(got.lse.isfinite().all().item<bool>());
  }
  in.scale = std::nullopt;
  in.key.copy_(in.key.narrow(1, 0, 1).expand_as(in.key).clone());  // smoothed: all zero
  expect_close(in);
  in.query.zero_();
  expect_close(in);
}

TEST_P(LowBitAttention, NoKeysNoQueriesOneKey) {
  for (const CpuIsa isa : supported_isas()) {
    SCOPED_TRACE(kernels::isa_name(isa));
    const auto run = [&](int64_t queries, int64_t keys) {
      return run_kernel(random_attention_inputs({.queries = queries, .keys = keys}, at::kHalf, 90),
                        options(isa));
    };
    const AttentionOutputs none = run(300, 0);
    EXPECT_TRUE(same_values(none.out, at::zeros_like(none.out)));
    EXPECT_TRUE((none.lse == -kInfinity).all().item<bool>());
    EXPECT_EQ(run(0, 30).out.numel(), 0);
    EXPECT_TRUE(run(3, 1).out.isfinite().all().item<bool>());
  }
}

/// A quantizer that drops NaN would turn a broken activation into a plausible picture.
TEST_P(LowBitAttention, NanShowsAndStaysInItsHead) {
  for (const double bad : {kNan, kInfinity}) {
    for (const int which : {0, 1, 2}) {
      AttentionInputs in = random_attention_inputs(
          {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 200, .head_dim = 64}, at::kFloat,
          100);
      at::Tensor& poisoned = which == 0 ? in.query : (which == 1 ? in.key : in.value);
      poisoned[0][which == 0 ? 290 : 150][1][5] = bad;
      for (const CpuIsa isa : supported_isas()) {
        SCOPED_TRACE(c10::str(bad, " in operand ", which, ": ", describe(in, options(isa))));
        const at::Tensor finite = run_kernel(in, options(isa)).out.isfinite().all(-1);
        EXPECT_TRUE(finite.select(2, 0).all().item<bool>());
        EXPECT_FALSE(finite[0][290][1].item<bool>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, LowBitAttention, ::testing::ValuesIn(kSchemes),
                         [](const auto& test) { return scheme_name(test.param.scheme); });

/// Why the smoothing of K is there.
TEST(SageAttention, WithoutSmoothingOutliersSpoilTheResult) {
  const AttentionInputs in = outlier_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 256, .keys = 1000, .head_dim = 128}, at::kBFloat16, 1);
  const at::Tensor want = reference_attention(in).out;
  for (const CpuIsa isa : supported_isas()) {
    const auto run = [&](AttentionScheme scheme) {
      return cosine(run_kernel(in, {.scheme = scheme, .isa = isa}).out, want);
    };
    EXPECT_GE(run(AttentionScheme::kSage), 0.999) << kernels::isa_name(isa);
    EXPECT_LT(run(AttentionScheme::kSageUnsmoothed), 0.99) << kernels::isa_name(isa);
  }
}

/// The hybrid scheme's first rows are those of the exact kernel.
TEST(Fp8Attention, FirstRowsAreExact) {
  AttentionInputs in = outlier_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 400, .keys = 300, .head_dim = 64}, at::kFloat, 2);
  for (const bool causal : {false, true}) {
    in.causal = causal;
    const int64_t rows = causal ? 128 : 256;
    const at::Tensor want = reference_attention(in).out;
    for (const CpuIsa isa : supported_isas()) {
      const at::Tensor got = run_kernel(in, {.scheme = AttentionScheme::kFp8, .isa = isa}).out;
      EXPECT_LE(relative_l1(got.narrow(1, 0, rows), want.narrow(1, 0, rows)), 1e-5);
      EXPECT_GT(relative_l1(got.slice(1, rows, 400), want.slice(1, rows, 400)), 1e-4);
    }
  }
}

}  // namespace
}  // namespace cachedit::test
