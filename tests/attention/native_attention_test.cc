#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attention/attention.h"
#include "cachedit/error.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::attention {
namespace {

Inputs random_inputs(int64_t queries, int64_t keys) {
  return {.query = test::tiny_weight("q", {2, queries, 3, 8}) * 4,
          .key = test::tiny_weight("k", {2, keys, 3, 8}) * 4,
          .value = test::tiny_weight("v", {2, keys, 3, 8}) * 4};
}

/// softmax(q k^T * scale + bias) v in fp64.
at::Tensor reference(const Inputs& in, const at::Tensor& bias = {}) {
  const auto heads = [](const at::Tensor& t) { return t.to(at::kDouble).transpose(1, 2); };
  const double scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(in.query.size(3))));
  at::Tensor logits = at::matmul(heads(in.query), heads(in.key).transpose(2, 3)) * scale;
  if (bias.defined()) logits = logits + bias;
  return at::matmul(at::softmax(logits, -1), heads(in.value)).transpose(1, 2);
}

TEST(NativeAttention, EqualsItsDefinition) {
  Inputs in = random_inputs(5, 9);
  EXPECT_LE(test::relative_error(NativeAttention()(in).out, reference(in)), 1e-6);
  in.scale = 1.0;
  EXPECT_LE(test::relative_error(NativeAttention()(in).out, reference(in)), 1e-6);
  in.mask = test::tiny_weight("mask", {1, 3, 5, 9});
  EXPECT_LE(test::relative_error(NativeAttention()(in).out, reference(in, in.mask.to(at::kDouble))),
            1e-6);
}

TEST(NativeAttention, CausalSeesNoLaterKey) {
  Inputs in = random_inputs(6, 6);
  in.is_causal = true;
  const at::Tensor before = NativeAttention()(in).out;
  in.value = in.value.clone();
  in.value.narrow(1, 3, 3).fill_(100);
  const at::Tensor after = NativeAttention()(in).out;
  EXPECT_LE(test::max_abs_error(after.narrow(1, 0, 3), before.narrow(1, 0, 3)), 0.0);
  EXPECT_GT(test::max_abs_error(after.narrow(1, 3, 3), before.narrow(1, 3, 3)), 1.0);
}

TEST(NativeAttention, RefusesShapesThatDoNotFit) {
  const NativeAttention attend;
  Inputs in = random_inputs(4, 4);
  in.key = at::zeros({2, 4, 2, 8});
  EXPECT_THROW(attend(in), InputError);
  in = random_inputs(4, 4);
  in.value = at::zeros({2, 5, 3, 8});
  EXPECT_THROW(attend(in), InputError);
  in = random_inputs(4, 4);
  in.query = in.query.select(0, 0);
  EXPECT_THROW(attend(in), InputError);
  in = random_inputs(4, 4);
  in.mask = at::ones({4, 4}, at::kBool);
  in.is_causal = true;
  EXPECT_THROW(attend(in), InputError);
}

}  // namespace
}  // namespace cachedit::attention
