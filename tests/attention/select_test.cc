#include "attention/select.h"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/availability.h"
#include "attention/cpu_kernels.h"
#include "backend_inputs.h"
#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A backend that copies the value, or says why it cannot.
Backend make_stub(const std::string& name, int64_t max_head_dim, std::optional<int> auto_rank,
                  const Availability& availability = {}) {
  DeviceSupport support{
      .device = at::kCPU,
      .can = {.dtypes = {at::kFloat}, .max_head_dim = max_head_dim},
      .availability = [availability](at::Device) { return availability; },
      .run = [](const Inputs& in) { return Result{.out = in.value.clone(), .lse = {}}; },
      .auto_rank = auto_rank};
  return {.name = name, .description = name, .devices = {support}};
}

Request request_of(int64_t head_dim, MaskKind mask = MaskKind::kNone) {
  return {.dtype = at::kFloat, .queries = 4, .keys = 4, .head_dim = head_dim, .mask = mask};
}

TEST(Auto, TakesTheFirstThatCanAndSaysWhyNotTheOthers) {
  const Registry registry({make_stub("third", 1000, 3), make_stub("first", 64, 1),
                           make_stub("gone", 1000, 2, {.available = false, .reason = "no chip"}),
                           make_stub("never", 1000, std::nullopt)});
  const Choice small = choose_automatically(registry, request_of(64));
  ASSERT_NE(small.backend, nullptr);
  EXPECT_EQ(small.backend->name, "first");
  EXPECT_TRUE(small.passed_over.empty());
  const Choice large = choose_automatically(registry, request_of(65));
  ASSERT_NE(large.backend, nullptr);
  EXPECT_EQ(large.backend->name, "third");
  ASSERT_EQ(large.passed_over.size(), 2u);
  EXPECT_EQ(large.passed_over[0].backend, "first");
  EXPECT_THAT(large.passed_over[0].reason, HasSubstr("1 to 64: got 65"));
  EXPECT_EQ(large.passed_over[1].backend, "gone");
  EXPECT_EQ(large.passed_over[1].reason, "no chip");
}

TEST(Auto, RefusesWithEveryReasonWhereNoneCan) {
  const Registry registry({make_stub("small", 8, 1), make_stub("other", 16, 2)});
  const AttentionOptions options{.registry = &registry};
  const auto attend_automatically = make_attention("auto", at::kCPU, options);
  test::expect_error<UnsupportedError>(
      [&] { (*attend_automatically)(random_inputs({.head_dim = 32})); },
      AllOf(HasSubstr("small: it takes head dims 1 to 8"), HasSubstr("other: ")));
}

TEST(Auto, PicksOnACpu) {
  const auto taken = [](const Request& request) {
    return choose_automatically(builtin_registry(), request).backend->name;
  };
  EXPECT_EQ(taken(request_of(128)), "flash");
  EXPECT_EQ(taken(request_of(256)), "flash");
  EXPECT_EQ(taken(request_of(257)), "ffpa");
  EXPECT_EQ(taken(request_of(1025)), "native");
  EXPECT_EQ(taken(request_of(128, MaskKind::kBool)), "ffpa");
  EXPECT_EQ(taken(request_of(128, MaskKind::kFloat)), "ffpa");
  EXPECT_EQ(taken(request_of(1025, MaskKind::kBool)), "native");
  Request grouped = request_of(64);
  grouped.heads = 6;
  grouped.kv_heads = 2;
  grouped.enable_gqa = true;
  EXPECT_EQ(taken(grouped), "ffpa");
  Request precise = request_of(64);
  precise.dtype = at::kDouble;
  EXPECT_EQ(taken(precise), "native");
}

TEST(Auto, TheResultNamesWhatRan) {
  const Registry registry({make_stub("first", 64, 1), make_stub("second", 128, 2)});
  const auto attend_automatically =
      make_attention("auto", at::kCPU, AttentionOptions{.registry = &registry});
  EXPECT_EQ((*attend_automatically)(random_inputs({.head_dim = 64})).backend, "first");
  EXPECT_EQ((*attend_automatically)(random_inputs({.head_dim = 128})).backend, "second");
}

TEST(MakeAttention, UnknownNamesListTheValidOnes) {
  test::expect_error<InputError>([] { make_attention("bogus", at::kCPU); },
                                 AllOf(HasSubstr("'bogus'"), HasSubstr("native, _sdpa_cudnn")));
}

TEST(MakeAttention, WhatIsNotAvailableSaysWhyAndWhatIs) {
  for (const char* name : {"_sdpa_cudnn", "_native_cudnn", "_flash_3", "_native_npu", "_npu_fia"}) {
    test::expect_error<UnsupportedError>(
        [&] { make_attention(name, at::kCPU); },
        AllOf(HasSubstr(c10::str("[attention ", name, "] not available on cpu")),
              HasSubstr("it runs on "), HasSubstr("on cpu use auto, native, flash, sage, ffpa")));
  }
}

TEST(MakeAttention, CudaBackendsSayWhatTheyNeed) {
  if (at::hasCUDA()) GTEST_SKIP() << "this machine has CUDA";
  const at::Device cuda(at::kCUDA, 0);
  for (const char* name : {"native", "_sdpa_cudnn", "_native_cudnn", "flash", "_flash_3"}) {
    test::expect_error<UnsupportedError>(
        [&] { make_attention(name, cuda); },
        AllOf(HasSubstr("not available on cuda:0"), HasSubstr("LibTorch has no CUDA")));
  }
  const at::Device npu(at::kPrivateUse1, 0);
  test::expect_error<UnsupportedError>(
      [&] { make_attention("_npu_fia", npu); },
      AllOf(HasSubstr("torch_npu"), HasSubstr("--op-library"), HasSubstr("CACHEDIT_OP_LIBRARIES")));
}

// The seed's table of hardware, and its warning.
TEST(MakeAttention, FfpaOnCudaGivesItsHardware) {
  const at::Device cuda(at::kCUDA, 0);
  const auto reason = [&](const char* name) {
    const Availability a = availability_on(backend(name), cuda);
    EXPECT_FALSE(a.available) << name;
    return a.reason + " | " + a.remedy;
  };
  for (const char* name : {"ffpa", "ffpa_fp8", "ffpa_fp8_per_block"}) {
    EXPECT_THAT(reason(name), AllOf(HasSubstr("no CUDA kernel"), HasSubstr("sm_89, sm_120"),
                                    HasSubstr("not for sm_90 and sm_100")));
  }
  EXPECT_THAT(reason("ffpa_fp4"), HasSubstr("sm_120 only"));
  for (const char* name : {"ffpa_fp8", "ffpa_fp8_per_block"}) {
    EXPECT_THAT(reason(name), AllOf(HasSubstr("head dim 192"), HasSubstr("ffpa_fp4")));
  }
  EXPECT_THAT(reason("sage"), HasSubstr("no CUDA kernel"));
}

TEST(MakeAttention, ABackendTakesTensorsOfItsDevice) {
  const auto native = make_attention("native", at::kCPU);
  Inputs in = random_inputs({});
  for (at::Tensor* t : {&in.query, &in.key, &in.value}) *t = t->to(at::kMeta);
  test::expect_error<UnsupportedError>([&] { (*native)(in); },
                                       HasSubstr("it takes tensors on cpu: got meta"));
}

TEST(AttentionChecks, SwitchValues) {
  for (const char* yes : {"1", "true", "yes", "on"}) EXPECT_TRUE(parse_attention_checks(yes));
  for (const char* no : {"", "0", "false", "no", "off"}) EXPECT_FALSE(parse_attention_checks(no));
  for (const char* bad : {"2", "TRUE", "enabled", " 1"}) {
    test::expect_error<ConfigError>([&] { parse_attention_checks(bad); },
                                    AllOf(HasSubstr("CACHE_DIT_ATTN_CHECKS"), HasSubstr(bad)));
  }
}

TEST(AttentionChecks, NameTheInputThatWasNotFinite) {
  const auto checked = make_attention("native", at::kCPU, {.check_finite = true});
  const auto unchecked = make_attention("native", at::kCPU, {.check_finite = false});
  Inputs in = random_inputs({.queries = 3, .keys = 4, .head_dim = 8});
  EXPECT_NO_THROW((*checked)(in));
  Inputs bad = in;
  bad.key = in.key.clone();
  bad.key.select(1, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_NO_THROW((*unchecked)(bad));
  test::expect_error<UnsupportedError>(
      [&] { (*checked)(bad); }, AllOf(HasSubstr("[attention native]"), HasSubstr("[1, 3, 1, 8]"),
                                      HasSubstr("not finite in the inputs: key")));
  bad = in;
  bad.mask = at::ones({4}) * std::numeric_limits<double>::infinity();
  test::expect_error<UnsupportedError>([&] { (*checked)(bad); }, HasSubstr("inputs: mask"));
  in.mask = at::ones({4}) * -std::numeric_limits<double>::infinity();
  EXPECT_NO_THROW((*checked)(in)) << "minus infinity is how a mask says no";
}

TEST(Availability, ACapabilityIsOnlyToldWhereThereIsADriver) {
  const std::optional<int> capability = compute_capability(at::Device(at::kCUDA, 0));
  if (at::hasCUDA()) {
    ASSERT_TRUE(capability);
  }
  if (capability) {
    EXPECT_GE(*capability, 30);
  }
}

}  // namespace
}  // namespace cachedit::attention
