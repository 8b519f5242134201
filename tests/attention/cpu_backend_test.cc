// Every backend that computes on a CPU, through the registry, against attention in float64.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attention/backend.h"
#include "attention/registry.h"
#include "attention/select.h"
#include "cachedit/error.h"
#include "support/attention_reference.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

using test::AttentionInputs;
using test::AttentionShape;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct CpuBackend {
  const char* name;
  double cosine;  ///< to float64, on keys with outliers; 1: relative L1 decides
  int64_t max_head_dim;
  CausalAlignment alignment;
  bool mask;
  bool gqa;
};

constexpr CpuBackend kBackends[] = {
    {"native", 1, 1024, CausalAlignment::kFirst, true, true},
    {"flash", 1, 256, CausalAlignment::kLast, false, false},
    {"sage", 0.999, 128, CausalAlignment::kEqualOnly, false, true},
    {"ffpa", 1, 1024, CausalAlignment::kLast, true, true},
    {"ffpa_fp8", 0.999, 1024, CausalAlignment::kLast, true, true},
    {"ffpa_fp8_per_block", 0.998, 1024, CausalAlignment::kLast, true, true},
    {"ffpa_fp4", 0.98, 1024, CausalAlignment::kLast, true, true},
};

void PrintTo(const CpuBackend& b, std::ostream* out) { *out << b.name; }

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

class CpuBackendTest : public ::testing::TestWithParam<CpuBackend> {
 protected:
  const CpuBackend& info() const { return GetParam(); }
  bool quantized() const { return info().cosine < 1; }

  Result run(const Inputs& in) const {
    return attend(builtin_registry().find(info().name), in, {.check_finite = false});
  }

  /// The call that `in` describes; the causal offset is the backend's own.
  Inputs request(const AttentionInputs& in) const {
    return {.query = in.query,
            .key = in.key,
            .value = in.value,
            .mask = in.mask,
            .is_causal = in.causal,
            .scale = in.scale,
            .enable_gqa = in.query.size(2) != in.key.size(2),
            .return_lse = true};
  }

  /// Checks shapes, dtypes, out and lse. `slack` widens the bound of few or widely spread weights.
  void expect_close(AttentionInputs in, double slack = 1) const {
    const Result got = run(request(in));
    if (in.causal && info().alignment == CausalAlignment::kLast) {
      in.causal_offset = in.key.size(1) - in.query.size(1);
    }
    const test::AttentionOutputs want = test::reference_attention(in);
    const at::ScalarType dtype = in.query.scalar_type();
    SCOPED_TRACE(c10::str(dtype, " query ", in.query.sizes(), ", key ", in.key.sizes()));
    EXPECT_EQ(got.backend, info().name);
    EXPECT_EQ(got.out.scalar_type(), dtype);
    ASSERT_EQ(got.lse.scalar_type(), at::kFloat);
    ASSERT_EQ(got.lse.sizes(), want.lse.sizes());
    if (quantized()) {
      EXPECT_GE(test::cosine(got.out, want.out), 1 - slack * (1 - info().cosine));
    } else {
      EXPECT_LE(test::relative_l1(got.out, want.out), dtype == at::kFloat ? 1e-5 : 1e-2);
    }
    const at::Tensor empty = want.lse == -kInfinity;
    EXPECT_TRUE(test::same_values(got.lse == -kInfinity, empty));
    const double lse_error = !quantized() ? 1e-3 : (info().cosine < 0.99 ? 0.5 : 0.1);
    EXPECT_LE(test::max_abs_error(got.lse.masked_fill(empty, 0), want.lse.masked_fill(empty, 0)),
              lse_error);
  }
};

TEST_P(CpuBackendTest, FluxLikeShapes) {
  for (const at::ScalarType dtype : kDtypes) {
    // 512 x 512: 512 text and 1024 image tokens. Fewer heads than 24, for the reference's sake.
    AttentionInputs in = test::random_attention_inputs(
        {.heads = 2, .kv_heads = 2, .queries = 1536, .keys = 1536, .head_dim = 128}, dtype, 1);
    in.key = test::with_channel_outliers(in.key);
    expect_close(in);
    in = test::random_attention_inputs(
        {.batch = 2, .heads = 24, .kv_heads = 24, .queries = 320, .keys = 320, .head_dim = 64},
        dtype, 2);
    in.key = test::with_channel_outliers(in.key);
    expect_close(in);
  }
}

TEST_P(CpuBackendTest, HeadDimensionsUpToItsLimit) {
  for (const int64_t head_dim : {1, 33, 64, 80, 128, 192, 256, 320, 512, 1024}) {
    const AttentionInputs in = test::random_attention_inputs(
        {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 200, .head_dim = head_dim},
        at::kBFloat16, 3);
    if (head_dim <= info().max_head_dim) {
      expect_close(in, /*slack=*/head_dim < 8 ? 4 : 1.5);
    } else {
      test::expect_error<UnsupportedError>(
          [&] { run(request(in)); },
          AllOf(HasSubstr(info().name), HasSubstr(std::to_string(head_dim))));
    }
  }
}

TEST_P(CpuBackendTest, LseOnlyWhereAskedFor) {
  Inputs in = request(test::random_attention_inputs({.queries = 5, .keys = 7}, at::kFloat, 4));
  const Result with = run(in);
  in.return_lse = false;
  const Result without = run(in);
  EXPECT_FALSE(without.lse.defined());
  EXPECT_LE(test::max_abs_error(without.out, with.out), quantized() ? 0 : 1e-5);
}

/// Layouts in which pipelines hand over their projections, and one whose last dimension is strided.
TEST_P(CpuBackendTest, StridedInputs) {
  for (const at::ScalarType dtype : kDtypes) {
    const AttentionInputs in = test::random_attention_inputs(
        {.batch = 2, .heads = 3, .kv_heads = 3, .queries = 300, .keys = 300, .head_dim = 40}, dtype,
        5);
    const at::Tensor want = run(request(in)).out;
    const at::Tensor fused = at::cat({in.query.flatten(2), in.key.flatten(2), in.value.flatten(2)},
                                     -1);  // [B, N, 3 x H x D]
    const auto part = [&](int64_t i) {
      return fused.narrow(2, i * 120, 120).view({2, 300, 3, 40});
    };
    AttentionInputs strided = in;
    strided.query = part(0), strided.key = part(1), strided.value = part(2);
    EXPECT_LE(test::max_abs_error(run(request(strided)).out, want), quantized() ? 0 : 1e-5);
    for (const test::Layout layout : {test::Layout::kHeadsFirst, test::Layout::kPadded}) {
      EXPECT_LE(test::max_abs_error(run(request(in_layout(in, layout))).out, want),
                quantized() ? 0 : 1e-5);
    }
    for (at::Tensor* t : {&strided.query, &strided.key, &strided.value}) {
      *t = t->transpose(2, 3).contiguous().transpose(2, 3);
    }
    ASSERT_NE(strided.key.stride(3), 1);
    EXPECT_LE(test::max_abs_error(run(request(strided)).out, want), quantized() ? 0 : 1e-5);
  }
}

/// Inputs are the caller's: a kernel may not scale or round them in place.
TEST_P(CpuBackendTest, InputsStayAsTheyAre) {
  const AttentionInputs in =
      test::random_attention_inputs({.queries = 300, .keys = 40}, at::kBFloat16, 6);
  const AttentionInputs copy{
      .query = in.query.clone(), .key = in.key.clone(), .value = in.value.clone()};
  run(request(in));
  EXPECT_TRUE(test::same_values(in.query, copy.query));
  EXPECT_TRUE(test::same_values(in.key, copy.key));
  EXPECT_TRUE(test::same_values(in.value, copy.value));
}

TEST_P(CpuBackendTest, CausalAlignsAsItsLibrary) {
  for (const auto& [queries, keys] : {std::pair{300, 300}, {280, 330}, {330, 280}}) {
    AttentionInputs in = test::random_attention_inputs(
        {.heads = 2, .kv_heads = 2, .queries = queries, .keys = keys}, at::kFloat, 7);
    in.causal = true;
    if (info().alignment == CausalAlignment::kEqualOnly && queries != keys) {
      test::expect_error<UnsupportedError>([&] { run(request(in)); }, HasSubstr(info().name));
    } else {
      expect_close(in);
    }
  }
}

TEST_P(CpuBackendTest, GroupedHeads) {
  const AttentionInputs in = test::random_attention_inputs(
      {.heads = 6, .kv_heads = 2, .queries = 300, .keys = 70}, at::kBFloat16, 8);
  if (info().gqa) {
    expect_close(in, 1.5);
    Inputs forgotten = request(in);
    forgotten.enable_gqa = false;
    test::expect_error<InputError>([&] { run(forgotten); }, HasSubstr("enable_gqa"));
  } else {
    test::expect_error<UnsupportedError>([&] { run(request(in)); }, HasSubstr(info().name));
  }
}

TEST_P(CpuBackendTest, ScaleIsTaken) {
  AttentionInputs in = test::random_attention_inputs({.queries = 300, .keys = 90}, at::kFloat, 9);
  for (const double scale : {0.16, 0.0, -0.1}) {
    in.scale = scale;
    expect_close(in, 2);
  }
}

TEST_P(CpuBackendTest, NoKeysGiveZeros) {
  const AttentionInputs in = test::random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 3, .keys = 0}, at::kFloat, 10);
  const Result got = run(request(in));
  EXPECT_TRUE(test::same_values(got.out, at::zeros_like(in.query)));
  EXPECT_TRUE((got.lse == -kInfinity).all().item<bool>());
}

TEST_P(CpuBackendTest, AnAllTrueMaskIsAsNone) {
  Inputs in = request(test::random_attention_inputs({.queries = 5, .keys = 7}, at::kFloat, 11));
  const at::Tensor want = run(in).out;
  in.mask = at::ones({1, 7}, at::kBool);
  EXPECT_TRUE(test::same_values(run(in).out, want));
}

/// FR-01: a backend takes the mask into account, or refuses it by name.
TEST_P(CpuBackendTest, MaskCountsOrIsRefused) {
  AttentionInputs in = test::random_attention_inputs(
      {.batch = 2, .heads = 2, .kv_heads = 2, .queries = 6, .keys = 6, .head_dim = 8}, at::kFloat,
      12);
  in.mask = at::ones({2, 1, 1, 6}, at::kBool);
  in.mask[1].slice(2, 4, 6).fill_(false);
  if (!info().mask) {
    test::expect_error<UnsupportedError>([&] { run(request(in)); },
                                         AllOf(HasSubstr(info().name), HasSubstr("mask")));
    return;
  }
  expect_close(in, 4);
  Inputs per_key = request(in);
  per_key.mask = in.mask.view({2, 6});
  EXPECT_TRUE(test::same_values(run(per_key).out, run(request(in)).out));
}

/// The metamorphic half of FR-01. What masked keys and values hold must not reach the output, not
/// even through a mean or a scale that quantization takes over all keys.
TEST_P(CpuBackendTest, MaskedKeysAndValuesDoNotMatter) {
  if (!info().mask) return;  // MaskCountsOrIsRefused
  for (const int64_t queries : {6, 300}) {
    AttentionInputs in = test::random_attention_inputs(
        {.batch = 2, .heads = 2, .kv_heads = 2, .queries = queries, .keys = 150}, at::kFloat, 24);
    in.mask = test::seeded_bool({2, 1, 1, 150}, 0.7, 25);
    const at::Tensor hidden = in.mask.view({2, 150, 1, 1}).logical_not();
    const test::AttentionOutputs want = test::reference_attention(in);
    in.key = in.key.masked_fill(hidden, 1e4);
    in.value = in.value.masked_fill(hidden, 1e4);
    EXPECT_GE(test::cosine(run(request(in)).out, want.out),
              quantized() ? 1 - 2 * (1 - info().cosine) : 1 - 1e-9);
  }
}

TEST_P(CpuBackendTest, EveryMaskKind) {
  if (!info().mask) return;  // MaskCountsOrIsRefused
  for (const at::ScalarType dtype : kDtypes) {
    AttentionInputs in = test::random_attention_inputs(
        {.batch = 2, .heads = 4, .kv_heads = 4, .queries = 300, .keys = 310}, dtype, 13);
    for (const at::Tensor& mask :
         {test::seeded_bool({2, 1, 1, 310}, 0.7, 14), test::seeded_bool({2, 4, 300, 310}, 0.7, 15),
          test::seeded_normal({1, 4, 300, 310}, dtype, 16),
          test::seeded_normal({2, 1, 1, 310}, dtype, 17)}) {
      in.mask = mask;
      expect_close(in, 3);
    }
  }
}

/// FR-04: bool and -inf hide a row's keys; the most negative finite number, given to all, does not.
TEST_P(CpuBackendTest, FullyMaskedRows) {
  if (!info().mask) return;  // MaskCountsOrIsRefused
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    AttentionInputs in = test::random_attention_inputs(
        {.heads = 2, .kv_heads = 2, .queries = 4, .keys = 6, .head_dim = 8}, dtype, 18);
    in.mask = at::ones({1, 1, 4, 6}, at::kBool);
    in.mask[0][0][2].fill_(false);
    for (int kind = 0; kind < 2; ++kind) {
      const Result got = run(request(in));
      EXPECT_TRUE(test::same_values(got.out.select(1, 2), at::zeros({1, 2, 8}, dtype)));
      EXPECT_TRUE((got.lse.select(2, 2) == -kInfinity).all().item<bool>());
      EXPECT_TRUE(got.out.isfinite().all().item<bool>());
      in.mask = at::zeros({1, 1, 4, 6}, dtype);
      in.mask[0][0][2].fill_(-kInfinity);
    }
    in.mask[0][0][2].fill_(dtype == at::kFloat ? std::numeric_limits<float>::lowest()
                                               : -3.3895313892515355e38);
    const at::Tensor mean = in.value.to(at::kDouble).mean(1);
    const double tolerance = quantized() ? 0.2 : (dtype == at::kFloat ? 1e-6 : 5e-3);
    EXPECT_LE(test::max_abs_error(run(request(in)).out.select(1, 2), mean), tolerance);
  }
}

/// FR-06: padding of the head dimension does not change the scale; short sequences give no NaN.
TEST_P(CpuBackendTest, OddHeadDimensionAndShortSequences) {
  for (const at::ScalarType dtype : kDtypes) {
    expect_close(
        test::random_attention_inputs(
            {.heads = 16, .kv_heads = 16, .queries = 1, .keys = 37, .head_dim = 96}, dtype, 19),
        1.5);
    expect_close(test::random_attention_inputs(
        {.heads = 16, .kv_heads = 16, .queries = 300, .keys = 1, .head_dim = 96}, dtype, 20));
  }
}

TEST_P(CpuBackendTest, MeanShiftedKeys) {
  AttentionInputs in = test::random_attention_inputs(
      {.heads = 2, .kv_heads = 2, .queries = 300, .keys = 400, .head_dim = 128}, at::kFloat, 21);
  const at::Tensor want = test::reference_attention(in).out;
  in.key = in.key + 50;
  const at::Tensor got = run(request(in)).out;
  EXPECT_GE(test::cosine(got, want), quantized() ? info().cosine : 1 - 1e-6);
}

TEST_P(CpuBackendTest, ValueWidthMustFit) {
  Inputs in = request(
      test::random_attention_inputs({.queries = 5, .keys = 7, .head_dim = 32}, at::kFloat, 22));
  in.value = at::zeros({1, 7, 1, 64});
  test::expect_error<InputError>([&] { run(in); }, AllOf(HasSubstr("value"), HasSubstr("64")));
}

/// Threads change who computes what, never the numbers of our kernels.
TEST_P(CpuBackendTest, ResultsDoNotDependOnThreads) {
  const AttentionInputs in = test::random_attention_inputs(
      {.heads = 3, .kv_heads = 3, .queries = 500, .keys = 300}, at::kBFloat16, 23);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const Result one = run(request(in));
  at::set_num_threads(3);
  const Result three = run(request(in));
  at::set_num_threads(before);
  const bool ours = std::string_view(info().name) != "native";
  EXPECT_LE(test::max_abs_error(three.out, one.out), ours ? 0 : 1e-2);
  EXPECT_LE(test::max_abs_error(three.lse, one.lse), ours ? 0 : 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, CpuBackendTest, ::testing::ValuesIn(kBackends),
                         [](const auto& test) { return std::string(test.param.name); });

/// A new CPU backend must join the list above.
TEST(CpuBackends, AllAreTested) {
  std::vector<std::string> tested, available;
  for (const CpuBackend& b : kBackends) tested.emplace_back(b.name);
  for (const Backend& b : builtin_registry().backends()) {
    const DeviceSupport* cpu = b.on(at::kCPU);
    if (cpu != nullptr && cpu->run) available.push_back(b.name);
  }
  std::sort(tested.begin(), tested.end());
  std::sort(available.begin(), available.end());
  EXPECT_EQ(available, tested);
}

}  // namespace
}  // namespace cachedit::attention
