#include "parallel/merge_states.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <limits>

#include "parts.h"
#include "support/attention_reference.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {
namespace {

using attention::Inputs;
using attention::Result;

constexpr double kNoKey = -std::numeric_limits<double>::infinity();

/// Native attention to keys [begin, end).
Result attend_to(const Inputs& in, int64_t begin, int64_t end) {
  Inputs part = in;
  part.key = in.key.slice(1, begin, end);
  part.value = in.value.slice(1, begin, end);
  if (in.mask.defined()) part.mask = in.mask.slice(-1, begin, end);
  return (*backend("native"))(part);
}

TEST(MergedStates, PartsOfTheKeysGiveAllKeys) {
  const Inputs in = whole_inputs({.tokens = 11, .heads = 3, .batch = 2});
  const Result want = attend_to(in, 0, 11);
  for (const std::vector<int64_t>& cuts :
       std::vector<std::vector<int64_t>>{{0, 11}, {0, 4, 11}, {0, 1, 2, 11}, {0, 5, 5, 11}}) {
    MergedStates merged(/*in_fp32=*/true);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) merged.add(attend_to(in, cuts[i], cuts[i + 1]));
    const Result got = merged.finish(at::kFloat, /*return_lse=*/true);
    EXPECT_LE(test::max_abs_error(got.out, want.out), 1e-6);
    EXPECT_LE(test::max_abs_error(got.lse, want.lse), 1e-6);
    EXPECT_EQ(got.backend, "native");
    EXPECT_FALSE(merged.finish(at::kFloat, /*return_lse=*/false).lse.defined());
  }
}

// Row 0 has keys in the first part alone, row 1 in the second alone, row 2 in neither.
TEST(MergedStates, PartsWithoutAKeyCountNothing) {
  Inputs in = whole_inputs({.tokens = 4, .heads = 2});
  in.mask = test::seeded_bool({1, 1, 4, 4}, 1.1, 1);
  in.mask.select(2, 0).slice(-1, 2, 4).fill_(false);
  in.mask.select(2, 1).slice(-1, 0, 2).fill_(false);
  in.mask.select(2, 2).fill_(false);
  const Result want = attend_to(in, 0, 4);
  ASSERT_EQ((want.lse == kNoKey).sum().item<int64_t>(), 2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool in_fp32 : {true, false}) {
      MergedStates merged(in_fp32);
      for (const int64_t begin : {0, 2}) {
        Result part = attend_to(in, begin, begin + 2);
        part.out = part.out.to(dtype);
        merged.add(part);
      }
      const Result got = merged.finish(dtype, true);
      EXPECT_EQ(got.out.scalar_type(), dtype);
      EXPECT_LE(test::max_abs_error(got.out, want.out), dtype == at::kFloat ? 1e-6 : 2e-2);
      EXPECT_TRUE(at::equal(got.lse == kNoKey, want.lse == kNoKey));
      EXPECT_EQ(got.out.select(1, 2).abs().max().item<double>(), 0);
    }
  }
}

// Merged in bf16, a hundred small parts lose what they add; in fp32 they do not.
TEST(MergedStates, Fp32KeepsWhatSixteenBitsLose) {
  const Inputs in = whole_inputs({.tokens = 128, .dtype = at::kBFloat16});
  const Result want = attend_to(in, 0, 128);
  const auto error = [&](bool in_fp32) {
    MergedStates merged(in_fp32);
    for (int64_t i = 0; i < 128; ++i) merged.add(attend_to(in, i, i + 1));
    return test::relative_error(merged.finish(at::kBFloat16, true).out, want.out);
  };
  EXPECT_LE(error(true), 4e-3);
  EXPECT_GT(error(false), 2 * error(true));
}

TEST(MergedStates, NanIsNotHidden) {
  const Inputs in = whole_inputs({.tokens = 4});
  MergedStates merged(true);
  merged.add(attend_to(in, 0, 2));
  Result bad = attend_to(in, 2, 4);
  bad.lse.fill_(std::numeric_limits<float>::quiet_NaN());
  merged.add(bad);
  EXPECT_TRUE(merged.finish(at::kFloat, true).out.isnan().all().item<bool>());
}

}  // namespace
}  // namespace cachedit::parallel
