// Backends of devices that this machine lacks, run on CPU tensors against STAND-INS of their
// operators (stand_ins.h). What is tested is what cachedit sends and how it reads the answer, not
// the operators themselves.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/contract.h"
#include "attention/dispatch.h"
#include "backend_inputs.h"
#include "cachedit/error.h"
#include "stand_ins.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What make_attention's object does, without asking whether the device is there.
Result run(const std::string& name, at::DeviceType device, const Inputs& in) {
  return backend(name).on(device)->run(normalise(name, in));
}

/// Half precision, as these operators take it: the errors below are its rounding.
Inputs inputs(const test::AttentionShape& shape) { return random_inputs(shape, at::kHalf); }

void expect_right(const Result& got, const Inputs& in, int64_t offset = 0) {
  const test::AttentionOutputs want = reference(in, offset);
  EXPECT_LE(test::relative_error(got.out, want.out), 1e-3);
  if (!in.return_lse) {
    EXPECT_FALSE(got.lse.defined());
    return;
  }
  ASSERT_EQ(got.lse.sizes(), want.lse.sizes());
  EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
  const at::Tensor none = want.lse == -kInfinity;
  EXPECT_TRUE(at::equal(got.lse == -kInfinity, none));
  EXPECT_LE(test::max_abs_error(got.lse.masked_fill(none, 0), want.lse.masked_fill(none, 0)), 1e-5);
}

/// A last dimension that is not dense: the operators must get a copy.
Inputs with_sparse_rows(Inputs in) {
  for (at::Tensor* t : {&in.query, &in.key, &in.value}) {
    std::vector<int64_t> wide = t->sizes().vec();
    wide.back() *= 2;
    at::Tensor padded = at::full(wide, std::numeric_limits<double>::quiet_NaN(), t->options());
    padded.slice(3, 0, wide.back(), 2).copy_(*t);
    *t = padded.slice(3, 0, wide.back(), 2);
  }
  return in;
}

/// A mask whose row 1 lets no key take part.
at::Tensor holey_mask(at::IntArrayRef shape) {
  at::Tensor mask = test::seeded_bool(shape, 0.6, 4);
  mask.select(-1, 0).fill_(true);
  mask.select(-2, 1).fill_(false);
  return mask;
}

// flash on CUDA: aten::_flash_attention_forward.

TEST(StandInFlash, SendsTheLayoutOfDiffusersAndTheSizes) {
  Inputs in =
      inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 5, .keys = 7, .head_dim = 16});
  in.scale = 0.3;
  in.return_lse = true;
  expect_right(run("flash", at::kCUDA, in), in);
  const auto& sent = stand_in::last_call("aten::_flash_attention_forward");
  EXPECT_TRUE(sent.at("query").toTensor().is_same(in.query)) << "no copy, [B, N, H, D]";
  EXPECT_EQ(sent.at("max_q").toInt(), 5);
  EXPECT_EQ(sent.at("max_k").toInt(), 7);
  EXPECT_EQ(sent.at("dropout_p").toDouble(), 0.0);
  EXPECT_FALSE(sent.at("is_causal").toBool());
  EXPECT_FALSE(sent.at("return_debug_mask").toBool());
  EXPECT_EQ(sent.at("scale").toDouble(), 0.3);
  EXPECT_TRUE(sent.at("cum_seq_q").isNone());
  EXPECT_TRUE(sent.at("window_size_left").isNone());
  const Inputs sparse = with_sparse_rows(in);
  expect_right(run("flash", at::kCUDA, sparse), in);
  EXPECT_EQ(stand_in::last_call("aten::_flash_attention_forward").at("key").toTensor().stride(3),
            1);
}

TEST(StandInFlash, CausalAlignsAtTheLastRows) {
  for (const auto& [queries, keys] : {std::pair{4, 7}, std::pair{7, 4}}) {
    Inputs in =
        inputs({.heads = 2, .kv_heads = 2, .queries = queries, .keys = keys, .head_dim = 8});
    in.is_causal = true;
    in.return_lse = true;
    // Three rows see no key when queries are 7: zeros, and -inf although the operator says +inf.
    expect_right(run("flash", at::kCUDA, in), in, keys - queries);
  }
}

// The cuDNN pair: aten::_scaled_dot_product_cudnn_attention.

TEST(StandInCudnn, SendsHeadsFirstAndAnAdditiveMask) {
  Inputs in =
      inputs({.batch = 2, .heads = 4, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.return_lse = true;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{2, 1, 5, 7}, {1, 1, 5, 7}, {2, 4, 5, 7}}) {
    in.mask = holey_mask(shape);
    expect_right(run("_sdpa_cudnn", at::kCUDA, in), in);
    const auto& sent = stand_in::last_call("aten::_scaled_dot_product_cudnn_attention");
    const at::Tensor bias = sent.at("attn_bias").toTensor();
    EXPECT_EQ(bias.scalar_type(), at::kHalf);
    EXPECT_EQ(bias.sizes(), in.mask.sizes()) << "not expanded";
    EXPECT_TRUE(at::equal(bias == -kInfinity, in.mask.logical_not()));
    EXPECT_EQ(sent.at("query").toTensor().sizes(), at::IntArrayRef({2, 4, 5, 16}));
    EXPECT_EQ(sent.at("key").toTensor().sizes(), at::IntArrayRef({2, 2, 7, 16}));
    EXPECT_TRUE(sent.at("compute_log_sumexp").toBool());
  }
  in.mask = test::seeded_normal({2, 7}, at::kHalf, 3);
  expect_right(run("_sdpa_cudnn", at::kCUDA, in), in);
}

TEST(StandInCudnn, TheBareOneSendsNoMaskAndAsksForNoLse) {
  Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.is_causal = true;
  expect_right(run("_native_cudnn", at::kCUDA, in), in);
  const auto& sent = stand_in::last_call("aten::_scaled_dot_product_cudnn_attention");
  EXPECT_TRUE(sent.at("attn_bias").isNone());
  EXPECT_TRUE(sent.at("is_causal").toBool());
  EXPECT_FALSE(sent.at("compute_log_sumexp").toBool());
  expect_right(run("_native_cudnn", at::kCUDA, with_sparse_rows(in)), in);
}

// native on CUDA, where the log-sum-exp is wanted.

TEST(StandInNative, TheLogSumExpComesFromEfficientAttention) {
  Inputs in =
      inputs({.batch = 2, .heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.return_lse = true;
  in.is_causal = true;
  expect_right(run("native", at::kCUDA, in), in);
  const auto& sent = stand_in::last_call("aten::_scaled_dot_product_efficient_attention");
  EXPECT_TRUE(sent.at("compute_log_sumexp").toBool());
  EXPECT_TRUE(sent.at("is_causal").toBool());
  EXPECT_TRUE(sent.at("attn_bias").isNone());
}

TEST(StandInNative, WhatThatOperatorCannotDoIsComputedByDefinition) {
  Inputs in = inputs({.heads = 4, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 12});
  in.return_lse = true;
  expect_right(run("native", at::kCUDA, in), in);
  in.mask = holey_mask({1, 1, 5, 7});
  expect_right(run("native", at::kCUDA, in), in);
  expect_right(run("native", at::kPrivateUse1, in), in);
  in.return_lse = false;
  expect_right(run("native", at::kCUDA, in), in);
  expect_right(run("native", at::kPrivateUse1, in), in);
}

// _flash_3: flash_attn_3::fwd of the official library.

TEST(StandInFlash3, SendsTheOfficialArguments) {
  Inputs in =
      inputs({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 4, .keys = 7, .head_dim = 16});
  in.return_lse = true;
  in.is_causal = true;
  expect_right(run("_flash_3", at::kCUDA, in), in, 3);
  const auto& sent = stand_in::last_call("flash_attn_3::fwd");
  EXPECT_TRUE(sent.at("q").toTensor().is_same(in.query)) << "no copy, [B, N, H, D]";
  EXPECT_TRUE(sent.at("v").toTensor().is_same(in.value));
  EXPECT_EQ(sent.at("softmax_scale").toDouble(), 0.25);
  EXPECT_TRUE(sent.at("is_causal").toBool());
  EXPECT_EQ(sent.at("num_splits").toInt(), 1);
  EXPECT_EQ(sent.at("window_size_left").toInt(), -1) << "the schema's default";
  EXPECT_TRUE(sent.at("k_new").isNone());
  in.is_causal = false;
  expect_right(run("_flash_3", at::kCUDA, with_sparse_rows(in)), in);
  in = inputs({.queries = 7, .keys = 4, .head_dim = 16});
  in.return_lse = true;
  in.is_causal = true;
  expect_right(run("_flash_3", at::kCUDA, in), in, -3);
}

// _native_npu: npu::npu_fusion_attention of torch_npu.

TEST(StandInNativeNpu, SendsBsndAndAnInvertedMask) {
  Inputs in =
      inputs({.batch = 2, .heads = 4, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.mask = test::seeded_bool({2, 7}, 0.5, 9);
  expect_right(run("_native_npu", at::kPrivateUse1, in), in);
  const auto& sent = stand_in::last_call("npu::npu_fusion_attention");
  EXPECT_EQ(sent.at("input_layout").toStringRef(), "BSND");
  EXPECT_EQ(sent.at("head_num").toInt(), 4);
  EXPECT_EQ(sent.at("scale").toDouble(), 0.25);
  EXPECT_EQ(sent.at("keep_prob").toDouble(), 1.0);
  EXPECT_EQ(sent.at("sparse_mode").toInt(), 0);
  EXPECT_TRUE(sent.at("query").toTensor().is_same(in.query));
  const at::Tensor mask = sent.at("atten_mask").toTensor();
  EXPECT_EQ(mask.sizes(), at::IntArrayRef({2, 1, 5, 7}));
  EXPECT_TRUE(mask.is_contiguous());
  EXPECT_TRUE(
      at::equal(mask, in.mask.logical_not().unsqueeze(1).unsqueeze(1).expand({2, 1, 5, 7})));
}

TEST(StandInNativeNpu, AnAllTrueMaskIsDropped) {
  Inputs in =
      inputs({.batch = 2, .heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.mask = at::ones({2, 7}, at::kBool);
  expect_right(run("_native_npu", at::kPrivateUse1, in), in);
  EXPECT_TRUE(stand_in::last_call("npu::npu_fusion_attention").at("atten_mask").isNone());
}

TEST(StandInNativeNpu, CausalIsTheCompressedMask) {
  Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.is_causal = true;
  expect_right(run("_native_npu", at::kPrivateUse1, in), in);
  const auto& sent = stand_in::last_call("npu::npu_fusion_attention");
  EXPECT_EQ(sent.at("sparse_mode").toInt(), 2);
  const at::Tensor mask = sent.at("atten_mask").toTensor();
  EXPECT_EQ(mask.sizes(), at::IntArrayRef({2048, 2048}));
  EXPECT_FALSE(mask[5][5].item<bool>());
  EXPECT_TRUE(mask[5][6].item<bool>());
}

// _npu_fia: npu::npu_fused_infer_attention_score of torch_npu.

// S-04: past key 512, too.
TEST(StandInNpuFia, SendsWholeMasksOfAnyLength) {
  for (const int64_t keys : {513, 600}) {
    Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 3, .keys = keys, .head_dim = 16});
    in.mask = at::ones({1, 1, 1, keys}, at::kBool);
    in.mask.narrow(-1, 512, keys - 512).fill_(false);
    in.return_lse = true;
    expect_right(run("_npu_fia", at::kPrivateUse1, in), in);
    const auto& sent = stand_in::last_call("npu::npu_fused_infer_attention_score");
    const at::Tensor mask = sent.at("atten_mask").toTensor();
    EXPECT_EQ(mask.sizes(), at::IntArrayRef({1, 1, 3, keys}));
    EXPECT_EQ(mask.sum().item<int64_t>(), 3 * (keys - 512)) << "true is left out";
    EXPECT_EQ(sent.at("sparse_mode").toInt(), 0);
  }
}

TEST(StandInNpuFia, SendsHeadsAndGivesTheLogSumExp) {
  Inputs in =
      inputs({.batch = 2, .heads = 4, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.return_lse = true;
  in.mask = holey_mask({2, 1, 5, 7});
  expect_right(run("_npu_fia", at::kPrivateUse1, in), in);
  const auto& sent = stand_in::last_call("npu::npu_fused_infer_attention_score");
  EXPECT_EQ(sent.at("num_heads").toInt(), 4);
  EXPECT_EQ(sent.at("num_key_value_heads").toInt(), 2);
  EXPECT_EQ(sent.at("input_layout").toStringRef(), "BSND");
  EXPECT_TRUE(sent.at("softmax_lse_flag").toBool());
  in.return_lse = false;
  in.mask = at::Tensor();
  expect_right(run("_npu_fia", at::kPrivateUse1, in), in);
  EXPECT_FALSE(
      stand_in::last_call("npu::npu_fused_infer_attention_score").at("softmax_lse_flag").toBool());
}

TEST(StandInNpu, MasksMustBeBoolAndForFiaOneForAllHeads) {
  Inputs in = inputs({.heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .head_dim = 16});
  in.mask = at::zeros({7}, at::kHalf);
  for (const char* name : {"_native_npu", "_npu_fia"}) {
    const Backend& npu = backend(name);
    test::expect_error<UnsupportedError>([&] { check(npu, npu.devices[0], in); },
                                         HasSubstr("bool masks only: got a float mask"));
  }
  in.mask = holey_mask({1, 2, 5, 7});
  test::expect_error<UnsupportedError>(
      [&] { check(backend("_npu_fia"), backend("_npu_fia").devices[0], in); },
      HasSubstr("one mask for all heads"));
}

// Calls by argument names.

TEST(CallOperator, WhatIsNotThereOrDoesNotFitIsRefusedWithTheSchema) {
  const auto call = [](const std::string& name) {
    call_operator({.where = "attention test",
                   .name = name,
                   .arguments = {{"q", at::zeros({1})}, {"scale", 1.0}}});
  };
  EXPECT_FALSE(has_operator("cachedit_test::none"));
  EXPECT_TRUE(has_operator("flash_attn_3::fwd"));
  test::expect_error<UnsupportedError>(
      [&] { call("cachedit_test::none"); },
      AllOf(HasSubstr("[attention test]"), HasSubstr("cachedit_test::none"),
            HasSubstr("--op-library")));
  test::expect_error<UnsupportedError>(
      [&] { call("cachedit_test::without_scale"); },
      AllOf(HasSubstr("no argument 'scale'"), HasSubstr("without_scale(Tensor q)")));
  test::expect_error<UnsupportedError>([&] { call("cachedit_test::needs_more"); },
                                       HasSubstr("needs an argument 'extra'"));
}

}  // namespace
}  // namespace cachedit::attention
