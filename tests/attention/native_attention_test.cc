#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <ostream>

#include "attention/aten_helpers.h"
#include "attention/select.h"
#include "backend_inputs.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result run(const Inputs& in) { return native_attention()(in); }

struct Kind {
  std::string name;
  at::ScalarType dtype;
  double tolerance;  ///< of the output, relative
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

class Native : public ::testing::TestWithParam<Kind> {
 protected:
  /// Output and log-sum-exp against the definition, with and without lse.
  void expect_right(Inputs in) {
    in.return_lse = false;
    const test::AttentionOutputs want = reference(in);
    EXPECT_FALSE(run(in).lse.defined());
    EXPECT_LE(test::relative_error(run(in).out, want.out), GetParam().tolerance);
    in.return_lse = true;
    const Result got = run(in);
    EXPECT_LE(test::relative_error(got.out, want.out), GetParam().tolerance);
    ASSERT_EQ(got.lse.scalar_type(), at::kFloat);
    ASSERT_EQ(got.lse.sizes(), want.lse.sizes());
    const at::Tensor none = want.lse == -kInfinity;
    EXPECT_TRUE(at::equal(got.lse == -kInfinity, none));
    // With 16-bit inputs ATen takes a faster, less exact exponential.
    const double lse_tolerance = GetParam().dtype == at::kFloat ? 1e-5 : 1e-4;
    EXPECT_LE(test::max_abs_error(got.lse.masked_fill(none, 0), want.lse.masked_fill(none, 0)),
              lse_tolerance);
  }
  Inputs inputs(test::AttentionShape shape) { return random_inputs(shape, GetParam().dtype); }
};

TEST_P(Native, EqualsItsDefinition) {
  Inputs in =
      inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 5, .keys = 9, .head_dim = 8});
  expect_right(in);
  in.scale = 1.0;
  expect_right(in);
  for (const int64_t head_dim : {1, 7, 96, 320}) {
    expect_right(
        inputs({.heads = 2, .kv_heads = 2, .queries = 3, .keys = 70, .head_dim = head_dim}));
  }
}

TEST_P(Native, TakesEveryMask) {
  Inputs in =
      inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 5, .keys = 9, .head_dim = 8});
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {9}, {2, 9}, {3, 5, 9}, {1, 1, 5, 9}, {2, 1, 1, 9}, {2, 3, 5, 9}}) {
    in.mask = test::seeded_bool(shape, 0.6, 5);
    in.mask.select(-1, 0).fill_(true);
    expect_right(in);
    in.mask = test::seeded_normal(shape, GetParam().dtype, 5);
    expect_right(in);
  }
}

TEST_P(Native, CausalAlignsAtTheFirstRows) {
  for (const auto& [queries, keys] : {std::pair{6, 6}, std::pair{4, 9}, std::pair{9, 4}}) {
    Inputs in =
        inputs({.heads = 2, .kv_heads = 2, .queries = queries, .keys = keys, .head_dim = 16});
    in.is_causal = true;
    expect_right(in);
  }
}

TEST_P(Native, GroupsHeads) {
  Inputs in =
      inputs({.batch = 2, .heads = 6, .kv_heads = 2, .queries = 4, .keys = 7, .head_dim = 8});
  expect_right(in);
  in.mask = test::seeded_normal({2, 6, 4, 7}, GetParam().dtype, 1);
  expect_right(in);
}

TEST_P(Native, ReadsEveryLayout) {
  const test::AttentionInputs dense = test::random_attention_inputs(
      {.batch = 2, .heads = 3, .kv_heads = 3, .queries = 5, .keys = 5, .head_dim = 8},
      GetParam().dtype, 11);
  for (const test::Layout layout :
       {test::Layout::kFusedQkv, test::Layout::kHeadsFirst, test::Layout::kPadded}) {
    expect_right(to_inputs(test::in_layout(dense, layout)));
  }
  Inputs in = to_inputs(dense);
  for (at::Tensor* t : {&in.query, &in.key, &in.value}) {
    at::Tensor wide = at::empty({2, 5, 3, 16}, t->options());
    wide.slice(3, 0, 16, 2).copy_(*t);
    *t = wide.slice(3, 0, 16, 2);  // a last dimension that is not dense
  }
  in.mask = test::seeded_normal({2, 1, 1, 10}, GetParam().dtype, 2).slice(3, 0, 10, 2);
  expect_right(in);
}

// FR-04
TEST_P(Native, RowsWithoutAnyKeyGiveZeros) {
  Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 4, .keys = 6, .head_dim = 8});
  const at::Tensor takes_part = at::ones({1, 1, 4, 6}, at::kBool);
  takes_part.select(2, 2).fill_(false);
  in.mask = takes_part;
  expect_right(in);
  EXPECT_TRUE(at::equal(run(in).out.select(1, 2), at::zeros({1, 2, 8}, in.query.options())));
  in.mask =
      at::zeros({1, 1, 4, 6}, in.query.options()).masked_fill(takes_part.logical_not(), -kInfinity);
  expect_right(in);
  EXPECT_TRUE(at::equal(run(in).out.select(1, 2), at::zeros({1, 2, 8}, in.query.options())));
}

TEST_P(Native, TheMostNegativeFiniteMaskGivesTheMeanOfV) {
  Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 4, .keys = 6, .head_dim = 8});
  const double lowest = GetParam().dtype == at::kHalf       ? -65504.0
                        : GetParam().dtype == at::kBFloat16 ? -3.3895313892515355e38
                                                            : -3.4028234663852886e38;
  in.mask = at::zeros({1, 1, 4, 6}, in.query.options());
  in.mask.select(2, 2).fill_(lowest);
  const at::Tensor mean = in.value.to(at::kDouble).mean(1);
  // In fp16 the mask is not large enough to swallow the logits whole.
  const double tolerance = GetParam().dtype == at::kFloat ? 1e-6 : 1e-2;
  if (GetParam().dtype != at::kHalf) {
    EXPECT_LE(test::max_abs_error(run(in).out.select(1, 2), mean), tolerance);
  }
  EXPECT_TRUE(run(in).out.isfinite().all().item<bool>());
}

TEST_P(Native, NoKeysAndNoQueriesAreNoError) {
  Inputs in =
      inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 4, .keys = 5, .head_dim = 8});
  in.return_lse = true;
  in.key = in.key.narrow(1, 0, 0);
  in.value = in.value.narrow(1, 0, 0);
  const Result none = run(in);
  EXPECT_TRUE(at::equal(none.out, at::zeros({2, 4, 3, 8}, in.query.options())));
  EXPECT_TRUE(at::equal(none.lse, at::full({2, 3, 4}, -kInfinity)));
  in.query = in.query.narrow(1, 0, 0);
  EXPECT_EQ(run(in).out.sizes(), at::IntArrayRef({2, 0, 3, 8}));
  EXPECT_EQ(run(in).lse.sizes(), at::IntArrayRef({2, 3, 0}));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Native,
                         ::testing::Values(Kind{"fp32", at::kFloat, 1e-6},
                                           Kind{"bf16", at::kBFloat16, 1e-2},
                                           Kind{"fp16", at::kHalf, 2e-3}),
                         [](const auto& test) { return test.param.name; });

TEST(NativeAttention, NamesItself) { EXPECT_EQ(run(random_inputs({})).backend, "native"); }

// The fallback of other devices, in more than one block of rows.
TEST(NativeAttention, TheDefinitionInBlocksIsRight) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Inputs in = random_inputs(
        {.batch = 2, .heads = 4, .kv_heads = 2, .queries = 300, .keys = 40, .head_dim = 8}, dtype);
    const double tolerance = dtype == at::kFloat ? 1e-6 : 1e-2;
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(kind);
      in.is_causal = kind == 1;
      in.mask = at::Tensor();
      if (kind == 2) in.mask = test::seeded_bool({2, 1, 300, 40}, 0.1, 3);  // some rows are empty
      if (kind == 3) in.mask = test::seeded_normal({40}, dtype, 3);
      const Result got = attention_by_definition(normalise("test", in));
      const test::AttentionOutputs want = reference(in);
      EXPECT_LE(test::relative_error(got.out, want.out), tolerance);
      const at::Tensor none = want.lse == -kInfinity;
      EXPECT_EQ(none.any().item<bool>(), kind == 2);
      EXPECT_TRUE(at::equal(got.lse == -kInfinity, none));
      EXPECT_LE(test::max_abs_error(got.lse.masked_fill(none, 0), want.lse.masked_fill(none, 0)),
                1e-5);
    }
  }
}

}  // namespace
}  // namespace cachedit::attention
