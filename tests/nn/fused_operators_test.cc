// The fused operators' tensor interface: kernels and definitions agree, whatever the layout, and
// what the kernels do not take goes through the definitions.
#include "nn/fused_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/attention_reference.h"
#include "support/tensor_compare.h"

namespace cachedit::nn {
namespace {

using test::relative_error;
using test::same_values;
using test::seeded_normal;

RotaryEmbedding rotary_of(int64_t tokens, int64_t head_dim) {
  return make_rotary(seeded_normal({tokens, 1}, at::kFloat, 9) * 20, {head_dim});
}

at::Tensor wide(const at::Tensor& t) { return t.to(at::kDouble); }

struct Case {
  at::ScalarType dtype;
  int64_t batch;
};

/// One rounding in the dtype, as a Frobenius norm: at most half a step, which is 3.9e-3, 4.9e-4 or
/// 6e-8 of the number that is rounded. Measured, 2.1e-3, 2.6e-4 and, with the roundings inside of
/// fp32 arithmetic, 8.4e-8.
double bound(at::ScalarType dtype) {
  if (dtype == at::kFloat) return 1.7e-7;
  return dtype == at::kBFloat16 ? 2.5e-3 : 3.2e-4;
}

class FusedOperators : public ::testing::TestWithParam<Case> {};

TEST_P(FusedOperators, ModulatedLayerNorm) {
  const auto [dtype, batch] = GetParam();
  // A slice of a longer sequence, and vectors that are parts of one projection.
  const at::Tensor x = seeded_normal({batch, 9, 40}, dtype, 1).narrow(1, 2, 6);
  const std::vector<at::Tensor> mod = seeded_normal({batch, 80}, dtype, 2).chunk(2, 1);
  const at::Tensor want = reference::modulated_layer_norm(wide(x), wide(mod[0]), wide(mod[1]));
  const at::Tensor got = modulated_layer_norm(x, mod[0], mod[1]);
  EXPECT_EQ(got.scalar_type(), dtype);
  EXPECT_LE(relative_error(got, want), bound(dtype));
  const at::Tensor mixed = modulated_layer_norm(x, mod[0].to(at::kFloat), mod[1].to(at::kFloat));
  EXPECT_TRUE(same_values(mixed, got)) << "vectors in fp32";

  const at::Tensor place = at::zeros({batch, 6, 50}, dtype).narrow(2, 5, 40);
  modulated_layer_norm_out(place, x, mod[0], mod[1]);
  EXPECT_TRUE(same_values(place, got));
  modulated_layer_norm_out(x, x, mod[0], mod[1]);
  EXPECT_TRUE(same_values(x, got)) << "in place";
}

TEST_P(FusedOperators, AddGated) {
  const auto [dtype, batch] = GetParam();
  const at::Tensor x = seeded_normal({batch, 9, 40}, dtype, 1).narrow(1, 2, 6);
  const at::Tensor y = seeded_normal({batch, 6, 55}, dtype, 2).narrow(2, 3, 40);
  const at::Tensor gate = seeded_normal({batch, 80}, dtype, 3).narrow(1, 40, 40);
  const at::Tensor got = add_gated(x, gate, y);
  EXPECT_EQ(got.scalar_type(), dtype);
  EXPECT_LE(relative_error(got, reference::add_gated(wide(x), wide(gate), wide(y))), bound(dtype));
  EXPECT_TRUE(same_values(add_gated(x, gate.to(at::kFloat), y), got)) << "gate in fp32";
  add_gated_out(x, x, gate, y);
  EXPECT_TRUE(same_values(x, got)) << "in place";
}

TEST_P(FusedOperators, NormAndRotate) {
  const auto [dtype, batch] = GetParam();
  const at::Tensor qkv = seeded_normal({batch, 7, 3, 5, 24}, dtype, 1);
  const at::Tensor before = qkv.clone();
  const at::Tensor weight = seeded_normal({24}, dtype, 2);
  // The image's rows of a joint sequence.
  const RotaryEmbedding rotary = {rotary_of(11, 24).freqs.narrow(0, 4, 7)};
  const at::Tensor key = qkv.select(2, 1);
  const at::Tensor want = reference::norm_and_rotate(wide(key), wide(weight), 1e-6, rotary);
  const at::Tensor got = norm_and_rotate(key, weight, 1e-6, rotary);
  EXPECT_EQ(got.scalar_type(), dtype);
  EXPECT_LE(relative_error(got, want), 1.5 * bound(dtype)) << "two roundings";
  const at::Tensor two_steps = reference::norm_and_rotate(key, weight, 1e-6, rotary);
  // Both in fp32 arithmetic, of different order; 16-bit types then round to the same number, but
  // for a few.
  EXPECT_LE(relative_error(got, two_steps), dtype == at::kFloat ? bound(dtype) : bound(dtype) / 4)
      << "it rounds where two steps do";

  norm_and_rotate_(key, weight, 1e-6, rotary);
  EXPECT_TRUE(same_values(key, got)) << "in place";
  EXPECT_TRUE(same_values(qkv.select(2, 0), before.select(2, 0))) << "query touched";
  EXPECT_TRUE(same_values(qkv.select(2, 2), before.select(2, 2))) << "value touched";
}

TEST_P(FusedOperators, ApplyRotary) {
  const auto [dtype, batch] = GetParam();
  const at::Tensor x = seeded_normal({batch, 7, 3, 5, 24}, dtype, 1).select(2, 2);
  const RotaryEmbedding rotary = rotary_of(7, 24);
  const at::Tensor got = apply_rotary(x, rotary);
  EXPECT_LE(relative_error(got, reference::apply_rotary(wide(x), rotary)), bound(dtype));
  apply_rotary_out(x, x, rotary);
  EXPECT_TRUE(same_values(x, got)) << "in place";
}

TEST_P(FusedOperators, Activations) {
  const auto [dtype, batch] = GetParam();
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
                                      Activation::kQuickGelu, Activation::kRelu}) {
    const at::Tensor x = seeded_normal({batch, 9, 40}, dtype, 1);
    const at::Tensor want = activate(activation, wide(x));
    // Half of a wider buffer, as a concatenation would have it.
    const at::Tensor half = at::zeros({batch, 9, 90}, dtype).narrow(2, 50, 40);
    activate_out(half, activation, x);
    EXPECT_LE(relative_error(half, want), bound(dtype));
    activate_out(x, activation, x);
    EXPECT_TRUE(same_values(x, half)) << "in place";
    // Rows that do not all lie equally far apart.
    const at::Tensor slice = seeded_normal({batch, 9, 40}, dtype, 1).narrow(1, 1, 7);
    activate_out(slice, activation, slice);
    EXPECT_LE(relative_error(slice, want.narrow(1, 1, 7)), bound(dtype));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FusedOperators,
                         ::testing::Values(Case{at::kFloat, 1}, Case{at::kFloat, 3},
                                           Case{at::kBFloat16, 1}, Case{at::kBFloat16, 3},
                                           Case{at::kHalf, 1}, Case{at::kHalf, 3}),
                         [](const auto& type) {
                           return c10::str(type.param.dtype, "_batch_", type.param.batch);
                         });

TEST(FusedOperatorsFallback, Float64KeepsItsDigits) {
  const at::Tensor x = seeded_normal({2, 3, 8}, at::kDouble, 1);
  const at::Tensor vector = seeded_normal({2, 8}, at::kDouble, 2);
  EXPECT_TRUE(same_values(modulated_layer_norm(x, vector, vector),
                          reference::modulated_layer_norm(x, vector, vector)));
  EXPECT_TRUE(same_values(add_gated(x, vector, x), reference::add_gated(x, vector, x)));
  const at::Tensor heads = x.unflatten(2, {2, 4}).clone();
  const RotaryEmbedding rotary = rotary_of(3, 4);
  const at::Tensor weight = seeded_normal({4}, at::kDouble, 3);
  const at::Tensor want = reference::norm_and_rotate(heads, weight, 1e-6, rotary);
  EXPECT_TRUE(same_values(apply_rotary(heads, rotary), reference::apply_rotary(heads, rotary)));
  norm_and_rotate_(heads, weight, 1e-6, rotary);
  EXPECT_TRUE(same_values(heads, want));
  const at::Tensor out = at::empty({2, 3, 8}, at::kDouble);
  activate_out(out, Activation::kSilu, x);
  EXPECT_TRUE(same_values(out, activate(Activation::kSilu, x)));
}

TEST(FusedOperatorsFallback, TakesRowsThatAreNotDense) {
  const at::Tensor x = seeded_normal({2, 8, 5}, at::kFloat, 1).transpose(1, 2);
  const at::Tensor vector = seeded_normal({8, 2}, at::kFloat, 2).t();
  EXPECT_LE(relative_error(modulated_layer_norm(x, vector, vector),
                           reference::modulated_layer_norm(wide(x), wide(vector), wide(vector))),
            bound(at::kFloat));
  EXPECT_LE(
      relative_error(add_gated(x, vector, x), reference::add_gated(wide(x), wide(vector), wide(x))),
      bound(at::kFloat));
  const at::Tensor heads = seeded_normal({2, 5, 8, 3}, at::kFloat, 3).transpose(2, 3);
  const RotaryEmbedding rotary = rotary_of(5, 8);
  EXPECT_LE(
      relative_error(apply_rotary(heads, rotary), reference::apply_rotary(wide(heads), rotary)),
      bound(at::kFloat));
  const at::Tensor want = activate(Activation::kGeluTanh, wide(x));
  activate_out(x, Activation::kGeluTanh, x);
  EXPECT_LE(relative_error(x, want), bound(at::kFloat));
}

TEST(FusedOperatorsFallback, OneVectorServesAllItems) {
  const at::Tensor x = seeded_normal({3, 4, 20}, at::kFloat, 1);
  const at::Tensor vector = seeded_normal({1, 20}, at::kFloat, 2);
  const at::Tensor each = vector.expand({3, 20});
  EXPECT_TRUE(same_values(modulated_layer_norm(x, vector, vector),
                          modulated_layer_norm(x, each.clone(), each.clone())));
  EXPECT_TRUE(same_values(add_gated(x, vector, x), add_gated(x, each.clone(), x)));
}

TEST(FusedOperatorsShapes, AreChecked) {
  const at::Tensor x = at::zeros({2, 3, 8}), vector = at::zeros({2, 8});
  EXPECT_THROW(modulated_layer_norm_out(at::zeros({2, 3, 9}), x, vector, vector), InputError);
  EXPECT_THROW(add_gated_out(x.to(at::kHalf), x, vector, x), InputError);
  EXPECT_THROW(activate_out(at::zeros({3, 8}), Activation::kSilu, x), InputError);
  EXPECT_ANY_THROW(modulated_layer_norm(x, at::zeros({2, 7}), at::zeros({2, 7})));
  EXPECT_ANY_THROW(add_gated(x, at::zeros({3, 8}), x));
  const at::Tensor heads = at::zeros({2, 3, 2, 4}), weight = at::zeros({4});
  const at::Tensor out = at::zeros({2, 3, 2, 5});
  EXPECT_THROW(apply_rotary_out(out, heads, rotary_of(3, 4)), InputError);
  EXPECT_THROW(norm_and_rotate_out(out, heads, weight, 1e-6, rotary_of(3, 4)), InputError);
  EXPECT_ANY_THROW(apply_rotary(heads, rotary_of(2, 4)));
  EXPECT_ANY_THROW(apply_rotary(heads, rotary_of(3, 6)));
  EXPECT_ANY_THROW(norm_and_rotate(heads, at::zeros({2}), 1e-6, rotary_of(3, 4)));
}

TEST(FusedOperatorsShapes, MayBeEmpty) {
  const at::Tensor none = at::zeros({2, 0, 8}), vector = at::zeros({2, 8});
  EXPECT_EQ(modulated_layer_norm(none, vector, vector).sizes(), none.sizes());
  EXPECT_EQ(add_gated(none, vector, none).sizes(), none.sizes());
  const at::Tensor heads = at::zeros({2, 0, 2, 4});
  EXPECT_EQ(norm_and_rotate(heads, at::zeros({4}), 1e-6, rotary_of(0, 4)).sizes(), heads.sizes());
  activate_out(none, Activation::kSilu, none);
  EXPECT_EQ(none.numel(), 0);
}

}  // namespace
}  // namespace cachedit::nn
