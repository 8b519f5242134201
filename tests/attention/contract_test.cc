#include "attention/contract.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/capability.h"
#include "attention/select.h"
#include "backend_inputs.h"
#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr test::AttentionShape kShape{
    .batch = 2, .heads = 2, .kv_heads = 2, .queries = 6, .keys = 6, .head_dim = 8};

Inputs base() { return random_inputs(kShape); }

/// [2, 1, 1, 6], the last two keys of the second sample left out.
at::Tensor padding_mask() {
  at::Tensor mask = at::ones({2, 1, 1, 6}, at::kBool);
  mask.select(0, 1).narrow(-1, 4, 2).fill_(false);
  return mask;
}

/// A bad argument is one for every backend, available or not.
void expect_refused(const Inputs& in, const ::testing::Matcher<std::string>& text) {
  for (const Backend& b : builtin_registry().backends()) {
    SCOPED_TRACE(b.name);
    test::expect_error<InputError>([&] { attend(b, in); },
                                   AllOf(HasSubstr("[attention " + b.name + "] "), text));
  }
  test::expect_error<InputError>([&] { (*make_attention("auto", at::kCPU))(in); }, text);
}

TEST(Contract, TensorsMustBeFourDimensional) {
  Inputs in = base();
  in.query = in.query.select(0, 0);
  expect_refused(in, AllOf(HasSubstr("query must be [B, N, H, D]"), HasSubstr("rank 3")));
  in = base();
  in.value = at::Tensor();
  expect_refused(in, HasSubstr("value is missing"));
}

TEST(Contract, TensorsMustFitTogether) {
  Inputs in = base();
  in.key = at::zeros({2, 6, 2, 16});
  expect_refused(in, HasSubstr("[2, 6, 2, 16]"));
  in = base();
  in.value = at::zeros({2, 6, 2, 5});
  expect_refused(in, AllOf(HasSubstr("value's width"), HasSubstr("got width 5")));
  in = base();
  in.key = in.value = at::zeros({3, 6, 2, 8});
  expect_refused(in, AllOf(HasSubstr("batch"), HasSubstr("[3, 6, 2, 8]")));
  in = base();
  in.value = at::zeros({2, 5, 2, 8});
  expect_refused(in, AllOf(HasSubstr("tokens and heads"), HasSubstr("[2, 5, 2, 8]")));
}

TEST(Contract, HeadsThatDifferNeedEnableGqaAndMustDivide) {
  Inputs in = base();
  in.key = in.value = at::zeros({2, 6, 1, 8});
  expect_refused(in, AllOf(HasSubstr("2 and 1"), HasSubstr("enable_gqa")));
  in.query = at::zeros({2, 6, 6, 8});
  in.key = in.value = at::zeros({2, 6, 4, 8});
  in.enable_gqa = true;
  expect_refused(in, AllOf(HasSubstr("divide"), HasSubstr("4 and 6")));
}

TEST(Contract, DtypesAndDevicesMustAgree) {
  Inputs in = base();
  in.key = in.key.to(at::kBFloat16);
  expect_refused(in, HasSubstr("fp32, bf16 and fp32"));
  in = base();
  in.value = in.value.to(at::kMeta);
  expect_refused(in, HasSubstr("cpu, cpu and meta"));
  in = base();
  in.mask = padding_mask().to(at::kMeta);
  expect_refused(in, AllOf(HasSubstr("mask"), HasSubstr("meta")));
}

TEST(Contract, TheScaleMustBeFinite) {
  Inputs in = base();
  in.scale = std::numeric_limits<double>::quiet_NaN();
  expect_refused(in, HasSubstr("scale"));
}

TEST(Contract, AMaskAndCausalExcludeEachOther) {
  Inputs in = base();
  in.is_causal = true;
  in.mask = padding_mask();
  expect_refused(in, AllOf(HasSubstr("is_causal"), HasSubstr("[2, 1, 1, 6]")));
  in.mask = at::ones({6}, at::kBool);
  expect_refused(in, HasSubstr("is_causal"));
}

TEST(Contract, MasksOfTheWrongShapeAreRefused) {
  Inputs in = base();
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{},
                                                                             {5},
                                                                             {1},
                                                                             {2, 1, 1, 7},
                                                                             {2, 1, 1, 1},
                                                                             {3, 6},
                                                                             {6, 6},
                                                                             {1, 1, 1, 1, 6},
                                                                             {3, 1, 6},
                                                                             {1, 3, 6},
                                                                             {1, 2, 5, 6},
                                                                             {3, 1, 1, 6},
                                                                             {1, 3, 6, 6}}) {
    in.mask = at::zeros(shape, at::kBool);
    expect_refused(in, AllOf(HasSubstr("mask"), HasSubstr(c10::str(in.mask.sizes()))));
  }
}

// S-03: numbers that look like a bool mask would be added to the logits.
TEST(Contract, MasksOfTheWrongDtypeAreRefused) {
  Inputs in = base();
  for (const at::ScalarType type : {at::kInt, at::kByte, at::kLong, at::kDouble, at::kHalf}) {
    in.mask = padding_mask().to(type);
    expect_refused(in, AllOf(HasSubstr("mask must be bool, fp32"), HasSubstr("bool: convert")));
  }
  in = random_inputs(kShape, at::kBFloat16);
  in.mask = padding_mask().to(at::kHalf);
  expect_refused(in, HasSubstr("bool, bf16 or fp32: got fp16"));
}

// S-03: a float mask of zeros and ones is added, not read as bool.
TEST(Contract, FloatMasksAreAdded) {
  Inputs in = base();
  in.mask = padding_mask();
  const at::Tensor as_bool = attend(backend("native"), in).out;
  in.mask = padding_mask().to(at::kFloat);
  const at::Tensor as_float = attend(backend("native"), in).out;
  EXPECT_LE(test::max_abs_error(as_float, reference(in).out), 1e-6);
  EXPECT_GT(test::max_abs_error(as_float, as_bool), 0.01);
}

TEST(Contract, MasksBecomeFourDimensionalViews) {
  const auto shape_of = [](std::vector<int64_t> shape) {
    Inputs in = random_inputs({.batch = 3, .heads = 2, .kv_heads = 2, .queries = 4, .keys = 5});
    in.mask = at::zeros(shape, at::kBool);
    const at::Tensor view = normalise("native", in).mask;
    EXPECT_EQ(view.const_data_ptr(), in.mask.const_data_ptr()) << "nothing is copied";
    return view.sizes().vec();
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape_of({5}), (Shape{1, 1, 1, 5}));
  EXPECT_EQ(shape_of({3, 5}), (Shape{3, 1, 1, 5}));
  EXPECT_EQ(shape_of({1, 5}), (Shape{1, 1, 1, 5}));
  EXPECT_EQ(shape_of({2, 4, 5}), (Shape{1, 2, 4, 5}));
  EXPECT_EQ(shape_of({1, 4, 5}), (Shape{1, 1, 4, 5}));
  EXPECT_EQ(shape_of({3, 2, 4, 5}), (Shape{3, 2, 4, 5}));
  EXPECT_EQ(shape_of({3, 1, 1, 5}), (Shape{3, 1, 1, 5}));
}

TEST(Contract, FillsInTheScaleAndKeepsTheTensors) {
  const Inputs in = base();
  const Inputs normal = normalise("native", in);
  EXPECT_DOUBLE_EQ(normal.scale.value(), 1 / std::sqrt(8.0));
  EXPECT_TRUE(normal.query.is_same(in.query));
}

// An all-true mask is none, also for backends that take no mask; a float mask of zeros is kept.
TEST(Contract, AnAllTrueMaskIsNone) {
  Inputs in = base();
  const at::Tensor plain = attend(backend("native"), in).out;
  for (const at::Tensor& mask :
       {at::ones({6}, at::kBool), at::ones({2, 6}, at::kBool), at::ones({2, 2, 6, 6}, at::kBool)}) {
    in.mask = mask;
    EXPECT_FALSE(normalise("flash", in).mask.defined());
    EXPECT_TRUE(test::same_values(attend(backend("native"), in).out, plain));
  }
  in.mask = at::zeros({6});
  EXPECT_TRUE(normalise("native", in).mask.defined());
}

// FR-01: a mask is used or refused by name, before the backend's own availability is looked at.
TEST(Contract, BackendsWithoutMasksRefuseThem) {
  Inputs in = base();
  in.mask = padding_mask();
  for (const char* name : {"_native_cudnn", "flash", "_flash_3", "sage"}) {
    test::expect_error<UnsupportedError>(
        [&] { attend(backend(name), in); },
        AllOf(HasSubstr(c10::str("[attention ", name, "] it takes no mask: got a bool mask")),
              HasSubstr("[2, 1, 1, 6]"), HasSubstr("native"), HasSubstr("ffpa"),
              Not(HasSubstr("not available"))));
  }
  for (const char* name : {"_sdpa_cudnn", "_native_npu", "_npu_fia"}) {
    test::expect_error<UnsupportedError>([&] { attend(backend(name), in); }, HasSubstr("it takes"));
  }
}

// FR-01: what is masked out cannot reach any row.
TEST(Contract, MaskedKeysHaveNoInfluence) {
  Inputs in = base();
  in.mask = padding_mask();
  const at::Tensor before = attend(backend("native"), in).out;
  EXPECT_LE(test::max_abs_error(before, reference(in).out), 1e-6);
  in.key = in.key.clone();
  in.value = in.value.clone();
  in.key.select(0, 1).narrow(0, 4, 2).fill_(1e4);
  in.value.select(0, 1).narrow(0, 4, 2).fill_(1e4);
  EXPECT_TRUE(test::same_values(attend(backend("native"), in).out, before));
}

// FR-02: rank 2 is key padding, also where it could be read as queries x keys.
TEST(Contract, RankTwoIsKeyPadding) {
  for (const int64_t batch : {2, 4}) {
    Inputs in = random_inputs(
        {.batch = batch, .heads = 2, .kv_heads = 2, .queries = 4, .keys = 6, .head_dim = 8});
    const at::Tensor mask = test::seeded_bool({batch, 6}, 0.5, 3);
    in.mask = mask;
    const at::Tensor rank_2 = attend(backend("native"), in).out;
    in.mask = mask.unsqueeze(1).unsqueeze(1);
    EXPECT_TRUE(test::same_values(rank_2, attend(backend("native"), in).out));
    if (batch == 4) {
      in.mask = mask.unsqueeze(0).unsqueeze(0);  // queries x keys, spelled out
      EXPECT_GT(test::max_abs_error(rank_2, attend(backend("native"), in).out), 0.1);
    }
  }
}

TEST(Contract, OnlyTheFfpaFamilyTakesFp32MasksOf16BitInputs) {
  Inputs in = random_inputs(kShape, at::kBFloat16);
  in.mask = at::full({6}, 0.5);
  for (const char* name : {"ffpa", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4"}) {
    const Backend& ffpa = backend(name);
    EXPECT_EQ(check(ffpa, *ffpa.on(at::kCPU), in).mask.scalar_type(), at::kBFloat16);
  }
  test::expect_error<UnsupportedError>(
      [&] { attend(backend("native"), in); },
      AllOf(HasSubstr("query's dtype (bf16): got an fp32 mask"), HasSubstr("ffpa")));
  in.mask = in.mask.to(at::kBFloat16);
  const Inputs same = check(backend("ffpa"), *backend("ffpa").on(at::kCPU), in);
  EXPECT_EQ(same.mask.const_data_ptr(), in.mask.const_data_ptr()) << "nothing to cast, no copy";
}

// S-02 and the table: grouped heads.
TEST(Contract, FlashRefusesGroupedHeadsAndNamesWhatTakesThem) {
  Inputs in = random_inputs({.heads = 6, .kv_heads = 2, .queries = 4, .keys = 4, .head_dim = 8});
  for (const char* name : {"flash", "_flash_3"}) {
    test::expect_error<UnsupportedError>(
        [&] { attend(backend(name), in); },
        AllOf(HasSubstr("enable_gqa, with 6 and 2"), HasSubstr("ffpa, native")));
  }
  in.value = at::zeros_like(in.value);
  in.value.select(2, 1).fill_(1);  // key head 1 serves query heads 3 to 5
  const at::Tensor out = attend(backend("native"), in).out;
  EXPECT_LE(test::max_abs_error(out.narrow(2, 0, 3), at::zeros({1, 4, 3, 8})), 0.0);
  EXPECT_LE(test::max_abs_error(out.narrow(2, 3, 3), at::ones({1, 4, 3, 8})), 1e-6);
}

// FR-06
TEST(Contract, SageRefusesWideHeadsUnequalCausalAndOtherValueWidths) {
  Inputs in = random_inputs({.heads = 2, .kv_heads = 2, .queries = 3, .keys = 5, .head_dim = 160});
  test::expect_error<UnsupportedError>(
      [&] { attend(backend("sage"), in); },
      AllOf(HasSubstr("[attention sage] it takes head dims 1 to 128: got 160"),
            HasSubstr("on cpu these can: flash, ffpa, native")));
  in = random_inputs({.heads = 2, .kv_heads = 2, .queries = 3, .keys = 5, .head_dim = 32});
  in.is_causal = true;
  test::expect_error<UnsupportedError>([&] { attend(backend("sage"), in); },
                                       HasSubstr("as many queries as keys: got 3 and 5"));
  in.is_causal = false;
  in.value = at::zeros({1, 5, 2, 64});
  test::expect_error<InputError>([&] { attend(backend("sage"), in); }, HasSubstr("width 64"));
}

TEST(Contract, LogSumExpIsRefusedWhereThereIsNone) {
  Inputs in = base();
  in.return_lse = true;
  for (const char* name : {"_native_cudnn", "_native_npu"}) {
    test::expect_error<UnsupportedError>([&] { attend(backend(name), in); },
                                         HasSubstr("got return_lse"));
  }
}

TEST(Contract, HeadDimsAndDtypesAreChecked) {
  Inputs in = random_inputs({.head_dim = 320});
  test::expect_error<UnsupportedError>([&] { attend(backend("flash"), in); },
                                       AllOf(HasSubstr("1 to 256: got 320"), HasSubstr("ffpa")));
  in = random_inputs({.head_dim = 1025});
  test::expect_error<UnsupportedError>([&] { attend(backend("ffpa"), in); },
                                       AllOf(HasSubstr("1025"), HasSubstr("native")));
  in = random_inputs({.head_dim = 12}, at::kBFloat16);
  test::expect_error<UnsupportedError>([&] { attend(backend("_flash_3"), in); },
                                       HasSubstr("multiples of 8: got 12"));
  in = random_inputs({.head_dim = 8}, at::kDouble);
  test::expect_error<UnsupportedError>(
      [&] { attend(backend("flash"), in); },
      AllOf(HasSubstr("it takes fp32, bf16, fp16: got fp64"), HasSubstr("native")));
}

// S-04: on a CPU the NPU's operator is refused, whatever the length.
TEST(Contract, NpuBackendsAreRefusedOnACpu) {
  for (const int64_t keys : {513, 600}) {
    Inputs in = random_inputs({.queries = 1, .keys = keys, .head_dim = 16}, at::kHalf);
    in.mask = test::seeded_bool({1, 1, 1, keys}, 0.5, 1);
    test::expect_error<UnsupportedError>([&] { attend(backend("_npu_fia"), in); },
                                         AllOf(HasSubstr("on npu: got cpu"), HasSubstr("native")));
  }
}

TEST(Contract, MasksUnderContextParallelism) {
  const std::map<std::string, bool> takes = {
      {"native", true},    {"_sdpa_cudnn", true}, {"_native_cudnn", false},
      {"flash", false},    {"_flash_3", false},   {"sage", false},
      {"ffpa", false},     {"ffpa_fp8", false},   {"ffpa_fp8_per_block", false},
      {"ffpa_fp4", false}, {"_native_npu", true}, {"_npu_fia", true}};
  for (const Backend& b : builtin_registry().backends()) {
    for (const DeviceSupport& support : b.devices) {
      EXPECT_EQ(!why_not_mask_under_context_parallelism(support), takes.at(b.name)) << b.name;
    }
  }
  EXPECT_THAT(*why_not_mask_under_context_parallelism(*backend("ffpa").on(at::kCPU)),
              HasSubstr("on one device only"));
}

// The request that `auto` and the table judge is the one that check() judges.
TEST(Contract, WhyNotAgreesWithCheck) {
  std::vector<Inputs> calls;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t head_dim : {8, 160, 320, 1100}) {
      Inputs in = random_inputs(
          {.heads = 2, .kv_heads = 2, .queries = 3, .keys = 4, .head_dim = head_dim}, dtype);
      calls.push_back(in);
      in.return_lse = true;
      calls.push_back(in);
      in.is_causal = true;
      calls.push_back(in);
      in.is_causal = false;
      in.mask = at::zeros({4}, at::kBool);
      calls.push_back(in);
      in.mask = at::zeros({1, 2, 1, 4});
      if (dtype != at::kDouble) calls.push_back(in);
    }
  }
  int64_t refused = 0;
  for (const Inputs& in : calls) {
    const Request request = describe(normalise("test", in));
    for (const Backend& b : builtin_registry().backends()) {
      for (const DeviceSupport& support : b.devices) {
        const auto reason = why_not(support, request);
        refused += reason.has_value();
        if (!reason) {
          EXPECT_NO_THROW(check(b, support, in));
        } else {
          test::expect_error<UnsupportedError>([&] { check(b, support, in); }, HasSubstr(*reason));
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace cachedit::attention
