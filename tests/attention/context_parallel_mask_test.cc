// Masks where each rank holds a part of the tokens: which backends take them, what `auto` takes
// then, and Ring Attention on a STAND-IN of the NPU's operator (stand_ins.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "attention/contract.h"
#include "attention/select.h"
#include "backend_inputs.h"
#include "cachedit/error.h"
#include "parallel/context_parallel.h"
#include "stand_ins.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Inputs masked_inputs() {
  Inputs in = random_inputs({.heads = 2, .kv_heads = 2, .queries = 4, .keys = 6, .head_dim = 16});
  in.mask = at::ones({1, 6}, at::kBool);
  in.mask.select(1, 2).fill_(false);
  return in;
}

TEST(ContextParallelMask, OneRuleForCheckAndTable) {
  const Inputs alone = masked_inputs();
  Inputs shared = alone;
  shared.under_context_parallelism = true;
  for (const Backend& b : builtin_registry().backends()) {
    for (const DeviceSupport& support : b.devices) {
      Request request = describe(normalise("test", shared));
      request.device = at::Device(support.device, 0);
      request.dtype = support.can.dtypes.front();
      EXPECT_EQ(why_not(support, request).has_value(),
                why_not_mask_under_context_parallelism(support).has_value())
          << b.name;
      request.mask = MaskKind::kNone;
      EXPECT_FALSE(why_not(support, request)) << b.name << ": only masks are at stake";
    }
  }
}

TEST(ContextParallelMask, TheRefusalNamesTheBackendAndWhatWouldDo) {
  Inputs in = masked_inputs();
  EXPECT_NO_THROW(attend(backend("ffpa"), in));
  in.under_context_parallelism = true;
  EXPECT_NO_THROW(attend(backend("native"), in));
  test::expect_error<UnsupportedError>(
      [&] { attend(backend("ffpa"), in); },
      AllOf(HasSubstr("[attention ffpa] it takes a mask on one device only, not under context "
                      "parallelism: got a bool mask"),
            HasSubstr("on cpu these can: native"), Not(HasSubstr("ffpa_fp8"))));
  in.mask = at::ones({1, 6}, at::kBool);
  EXPECT_NO_THROW(attend(backend("ffpa"), in)) << "all true is as none";
}

TEST(ContextParallelMask, AutoTakesABackendThatMay) {
  const auto automatic = make_attention("auto", at::kCPU);
  Inputs in = masked_inputs();
  EXPECT_EQ((*automatic)(in).backend, "ffpa");
  in.under_context_parallelism = true;
  EXPECT_EQ((*automatic)(in).backend, "native");
  in.mask = at::Tensor();
  EXPECT_EQ((*automatic)(in).backend, "flash");
}

/// `_npu_fia` on CPU tensors: what it sends and how it reads the answer. The stand-in keeps its
/// arguments in one place for all threads.
class FiaOnCpu final : public Attention {
 public:
  Result operator()(const Inputs& inputs) const override {
    const std::lock_guard lock(mutex_);
    const Inputs in = normalise("_npu_fia", inputs);
    Request request = describe(in);
    request.device = at::Device(at::kPrivateUse1, 0);
    const DeviceSupport& support = *backend("_npu_fia").on(at::kPrivateUse1);
    if (const auto reason = why_not(support, request)) throw UnsupportedError(*reason);
    return support.run(in);
  }

 private:
  mutable std::mutex mutex_;
};

// The lse that Ring merges by comes as [B, H, Nq, 1] from that operator.
TEST(ContextParallelMask, RingOnTheNpusOperator) {
  const FiaOnCpu fia;
  Inputs whole = random_inputs(
      {.batch = 2, .heads = 4, .kv_heads = 2, .queries = 6, .keys = 6, .head_dim = 16}, at::kHalf);
  whole.return_lse = true;
  for (const bool masked : {false, true}) {
    if (masked) whole.mask = test::seeded_bool({2, 6}, 0.6, 9);
    const test::AttentionOutputs want = reference(whole);
    test::run_ranks(3, [&](comm::Communicator& group) {
      const auto part = [&](const at::Tensor& t, int64_t dim) {
        return t.narrow(dim, 2 * group.rank(), 2);
      };
      Inputs in = whole;
      for (at::Tensor* t : {&in.query, &in.key, &in.value}) *t = part(*t, 1);
      if (masked) in.mask = part(in.mask, 1);
      const Result got = (*parallel::make_ring(fia, group, {2, 2, 2}))(in);
      EXPECT_LE(test::relative_error(got.out, part(want.out, 1)), 1e-3);
      EXPECT_LE(test::max_abs_error(got.lse, part(want.lse, 2)), 1e-5);
    });
  }
}

TEST(ContextParallelMask, TheOtherNpuBackendGivesNoLogSumExpForRing) {
  Request request = describe(normalise("test", random_inputs({.head_dim = 16}, at::kHalf)));
  request.device = at::Device(at::kPrivateUse1, 0);
  request.return_lse = true;
  EXPECT_THAT(why_not(*backend("_native_npu").on(at::kPrivateUse1), request).value_or(""),
              HasSubstr("no log-sum-exp"));
  EXPECT_FALSE(why_not(*backend("_npu_fia").on(at::kPrivateUse1), request));
}

}  // namespace
}  // namespace cachedit::attention
