// kExact against float64 and against ATen's own error, over head dimensions, lengths, masks, head
// groupings and layouts, on every instruction level of this machine.
#include <ATen/ops/ones.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/dtype_name.h"
#include "kernels/kernel_runner.h"
#include "support/tensor_compare.h"

namespace cachedit::test {
namespace {

constexpr int64_t kHeadDims[] = {8, 40, 64, 72, 96, 128, 160, 192, 256, 320, 512, 1024, 1, 7, 33};
constexpr int64_t kLengths[] = {1, 17, 128, 1000};

enum class MaskKind {
  kNone,
  kBoolKeys,
  kBoolPadding,
  kBoolFull,
  kFloat32,
  kActivation,
  kCausalFirst,
  kCausalLast,
  kCount
};

void add_mask(AttentionInputs& in, MaskKind kind, uint64_t seed) {
  const int64_t batch = in.query.size(0), heads = in.query.size(2), queries = in.query.size(1),
                keys = in.key.size(1);
  switch (kind) {
    case MaskKind::kBoolKeys:
      in.mask = seeded_bool({1, 1, 1, keys}, 0.8, seed);
      break;
    case MaskKind::kBoolPadding:
      in.mask = seeded_bool({batch, 1, 1, keys}, 0.5, seed);
      break;
    case MaskKind::kBoolFull:
      in.mask = seeded_bool({batch, heads, queries, keys}, 0.7, seed);
      in.mask[0][0][queries / 2].fill_(false);
      break;
    case MaskKind::kFloat32:
      // Around 100, so that a kernel that rounds it to a 16-bit type is off by far.
      in.mask = seeded_normal({1, heads, queries, keys}, at::kFloat, seed) + 100;
      break;
    case MaskKind::kActivation:
      in.mask = seeded_normal({batch, 1, queries, keys}, in.query.scalar_type(), seed);
      break;
    case MaskKind::kCausalFirst:
    case MaskKind::kCausalLast:
      in.causal = true;
      in.causal_offset = kind == MaskKind::kCausalLast ? keys - queries : 0;
      break;
    case MaskKind::kNone:
    case MaskKind::kCount:
      break;
  }
}

/// The bounds of a 16-bit result: close to float64, and as close as ATen gets. Rounding the exact
/// result to the dtype is an error that nobody avoids, and below some thousand elements both errors
/// are small samples, whose ratio scatters.
void expect_as_good_as_aten(const at::Tensor& got, const at::Tensor& want, const at::Tensor& aten) {
  const double error = relative_l1(got, want);
  EXPECT_LE(error, 1e-2);
  const double rounding = relative_l1(want.to(got.scalar_type()), want);
  const double ratio = got.numel() >= 4000 ? 1.2 : 2.0;
  EXPECT_LE(error, ratio * std::max(relative_l1(aten, want), rounding))
      << "ATen " << relative_l1(aten, want) << ", rounding alone " << rounding;
}

/// Running sums are fp32 and products of every dtype exact in fp32, so lse errs by some fp32
/// rounding steps of the largest logit. For 16-bit dtypes the exponential is a short polynomial,
/// good to 1e-4: less than the rounding of the weights, of which lse knows nothing.
void expect_lse(const at::Tensor& got, const at::Tensor& want, at::ScalarType dtype) {
  const at::Tensor finite = want.abs() < 1e30;
  EXPECT_TRUE(same_values(got.masked_select(finite.logical_not()).to(at::kDouble),
                          want.masked_select(finite.logical_not())));
  const at::Tensor w = want.masked_select(finite);
  const at::Tensor error = (got.to(at::kDouble).masked_select(finite) - w).abs() / (1 + w.abs());
  if (error.numel() > 0) {
    EXPECT_LE(error.max().item<double>(), dtype == at::kFloat ? 1e-5 : 1e-4);
  }
}

void expect_exact_on_every_isa(const AttentionInputs& in, bool strided_out = false) {
  const AttentionOutputs want = reference_attention(in);
  at::Tensor aten;
  if (in.query.scalar_type() != at::kFloat) aten = aten_attention(in);
  for (const kernels::CpuIsa isa : supported_isas()) {
    const KernelOptions options{.isa = isa, .strided_out = strided_out};
    SCOPED_TRACE(describe(in, options));
    const AttentionOutputs got = run_kernel(in, options);
    if (aten.defined()) {
      expect_as_good_as_aten(got.out, want.out, aten);
    } else {
      EXPECT_LE(relative_l1(got.out, want.out), 1e-5);
    }
    expect_lse(got.lse, want.lse, in.query.scalar_type());
  }
}

struct SweepCase {
  at::ScalarType dtype;
  int64_t head_dim;
};

void PrintTo(const SweepCase& c, std::ostream* out) { *out << c.dtype << ", D " << c.head_dim; }

class ExactAttention : public ::testing::TestWithParam<SweepCase> {};

/// All sixteen pairs of lengths; over the sweep every mask kind meets every pair and every head
/// dimension, while grouping, batch and layout are drawn.
TEST_P(ExactAttention, AgreesWithFloat64) {
  const SweepCase& c = GetParam();
  const auto rank = std::find(std::begin(kHeadDims), std::end(kHeadDims), c.head_dim);
  const uint64_t first_mask = 3 * (rank - std::begin(kHeadDims)) + 5 * static_cast<int>(c.dtype);
  std::mt19937 random(static_cast<unsigned>(c.head_dim * 100 + static_cast<int>(c.dtype)));
  for (uint64_t pair = 0; pair < 16; ++pair) {
    const int64_t queries = kLengths[pair / 4], keys = kLengths[pair % 4];
    // The reference and the comparison with it take the time, so large cases have one head.
    const bool large = (queries * keys + 50 * (queries + keys)) * c.head_dim > 20'000'000;
    const bool grouped = random() % 2 == 0;
    const AttentionShape shape{.batch = !large && random() % 2 == 0 ? 2 : 1,
                               .heads = large ? 1 : (grouped ? 6 : 3),
                               .kv_heads = large ? 1 : (grouped ? 2 : 3),
                               .queries = queries,
                               .keys = keys,
                               .head_dim = c.head_dim};
    AttentionInputs in = random_attention_inputs(shape, c.dtype, 1000 + pair);
    add_mask(in, static_cast<MaskKind>((pair + first_mask) % static_cast<int>(MaskKind::kCount)),
             pair);
    expect_exact_on_every_isa(in_layout(in, static_cast<Layout>(random() % 4)), random() % 3 == 0);
  }
}

std::vector<SweepCase> sweep() {
  std::vector<SweepCase> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t head_dim : kHeadDims) cases.push_back({dtype, head_dim});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Sweep, ExactAttention, ::testing::ValuesIn(sweep()), [](const auto& test) {
  return c10::str(dtype_name(test.param.dtype), "_d", test.param.head_dim);
});

class ExactAttentionDtype : public ::testing::TestWithParam<at::ScalarType> {};

/// As FLUX at 1024 x 1024, with few queries to keep the float64 reference fast.
TEST_P(ExactAttentionDtype, ManyKeys) {
  const AttentionShape shape{
      .heads = 2, .kv_heads = 2, .queries = 300, .keys = 4608, .head_dim = 128};
  AttentionInputs in = random_attention_inputs(shape, GetParam(), 1);
  expect_exact_on_every_isa(in);
  in.mask = seeded_bool({1, 1, 1, 4608}, 0.9, 2);
  expect_exact_on_every_isa(in_layout(in, Layout::kFusedQkv));
}

TEST_P(ExactAttentionDtype, ManyQueriesCausal) {
  AttentionInputs in =
      random_attention_inputs({.queries = 4610, .keys = 700, .head_dim = 64}, GetParam(), 3);
  in.causal = true;
  expect_exact_on_every_isa(in);
  in.causal_offset = 700 - 4610;  // most rows see no key
  expect_exact_on_every_isa(in);
  in.causal_offset = 100;
  expect_exact_on_every_isa(in);
}

TEST_P(ExactAttentionDtype, FortyEightHeads) {
  const AttentionShape shape{
      .batch = 2, .heads = 48, .kv_heads = 48, .queries = 70, .keys = 90, .head_dim = 64};
  expect_exact_on_every_isa(random_attention_inputs(shape, GetParam(), 4));
  AttentionShape grouped = shape;
  grouped.kv_heads = 8;
  expect_exact_on_every_isa(random_attention_inputs(grouped, GetParam(), 5));
}

/// S-02: query heads 0 to 2 read key head 0, heads 3 to 5 key head 1.
TEST_P(ExactAttentionDtype, GroupedHeadsReadTheirOwnKeyHead) {
  const AttentionShape shape{.heads = 6, .kv_heads = 2, .queries = 4, .keys = 5, .head_dim = 16};
  AttentionInputs in = random_attention_inputs(shape, GetParam(), 6);
  in.value.select(2, 0).fill_(1);
  in.value.select(2, 1).fill_(2);
  for (const kernels::CpuIsa isa : supported_isas()) {
    const AttentionOutputs got = run_kernel(in, {.isa = isa});
    EXPECT_LE(max_abs_error(got.out.narrow(2, 0, 3), at::ones({1, 4, 3, 16})), 1e-2);
    EXPECT_LE(max_abs_error(got.out.narrow(2, 3, 3), at::ones({1, 4, 3, 16}) * 2), 2e-2);
  }
}

/// Masks whose memory order is not [B, H, Nq, Nkv], and masks broadcast along keys.
TEST_P(ExactAttentionDtype, MasksWithUnusualStrides) {
  const AttentionShape shape{
      .batch = 2, .heads = 2, .kv_heads = 2, .queries = 50, .keys = 70, .head_dim = 32};
  AttentionInputs in = random_attention_inputs(shape, GetParam(), 7);
  in.mask = seeded_normal({2, 2, 70, 50}, GetParam(), 8).transpose(2, 3);
  expect_exact_on_every_isa(in);
  in.mask = seeded_bool({70, 2, 50, 2}, 0.6, 9).permute({3, 1, 2, 0});
  expect_exact_on_every_isa(in);
  in.mask = seeded_bool({2, 1, 50, 1}, 0.6, 10);
  expect_exact_on_every_isa(in);
  in.mask = seeded_normal({1, 2, 50, 141}, at::kFloat, 11).slice(3, 1, 141, 2);
  expect_exact_on_every_isa(in);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactAttentionDtype,
                         ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) { return dtype_name(test.param); });

}  // namespace
}  // namespace cachedit::test
