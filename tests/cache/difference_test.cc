// The fused sums behind every decision, on every instruction level, against float64.
#include "kernels/difference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "cache/residual_difference.h"
#include "kernels/cpu_isa.h"
#include "support/tiny_weights.h"

namespace cachedit {
namespace {

using kernels::CpuIsa;
using kernels::DifferenceSums;
using kernels::ElementType;
using test::tiny_weight;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kSizes[] = {1,  2,   7,    15,   16,   17,    31,
                              33, 100, 4095, 4096, 4097, 70001, 64 * 4096 + 3};

/// Every task on a thread of its own.
void run_threads(void* context, kernels::Parallel::Task task, void* argument) {
  std::vector<std::thread> workers;
  for (int i = 1; i < *static_cast<int*>(context); ++i) workers.emplace_back(task, argument, i);
  task(argument, 0);
  for (std::thread& worker : workers) worker.join();
}

struct Arrays {
  at::Tensor previous;
  at::Tensor states;
  at::Tensor base;  ///< may be undefined
};

/// `count` values of `dtype` at an odd address, with NaN before and behind them.
at::Tensor guarded(const std::string& name, int64_t count, at::ScalarType dtype, double scale) {
  const at::Tensor gap = at::full({17}, kNan);
  return at::cat({gap, tiny_weight(name, {count}) * scale, gap}).to(dtype).narrow(0, 17, count);
}

Arrays arrays_of(int64_t count, at::ScalarType dtype, bool with_base) {
  Arrays a;
  a.previous = guarded("previous", count, dtype, 9.0);
  a.states = guarded("states", count, dtype, 20.0);
  if (with_base) a.base = guarded("base", count, dtype, 15.0);
  return a;
}

DifferenceSums run(const Arrays& a, CpuIsa isa, int threads = 1) {
  const ElementType type = a.previous.scalar_type() == at::kFloat      ? ElementType::kFloat32
                           : a.previous.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16
                                                                       : ElementType::kFloat16;
  return kernels::difference_sums(
      type, a.previous.const_data_ptr(), a.states.const_data_ptr(),
      a.base.defined() ? a.base.const_data_ptr() : nullptr, a.previous.numel(),
      {.threads = threads, .context = &threads, .run = run_threads}, isa);
}

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : kernels::kAllIsas) {
    if (kernels::isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

class DifferenceKernel : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(DifferenceKernel, EqualsFloat64Sums) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool with_base : {false, true}) {
      for (const int64_t count : kSizes) {
        SCOPED_TRACE(std::string(c10::toString(dtype)) + " x " + std::to_string(count) +
                     (with_base ? " with base" : ""));
        const Arrays a = arrays_of(count, dtype, with_base);
        const at::Tensor current = a.base.defined() ? a.states - a.base : a.states;
        const at::Tensor previous = a.previous.to(at::kDouble);
        const double change = (previous - current.to(at::kDouble)).abs().sum().item<double>();
        const double magnitude = previous.abs().sum().item<double>();
        const DifferenceSums got = run(a, GetParam());
        EXPECT_NEAR(got.change, change, 1e-6 * change);
        EXPECT_NEAR(got.magnitude, magnitude, 1e-6 * magnitude);
      }
    }
  }
}

TEST_P(DifferenceKernel, DoesNotDependOnThreads) {
  for (const int64_t count : {int64_t{5}, int64_t{9000}, int64_t{500001}}) {
    const Arrays a = arrays_of(count, at::kFloat, true);
    const DifferenceSums want = run(a, GetParam());
    for (const int threads : {2, 3, 7, 16, 80}) {
      const DifferenceSums got = run(a, GetParam(), threads);
      EXPECT_EQ(got.change, want.change) << threads;
      EXPECT_EQ(got.magnitude, want.magnitude) << threads;
    }
  }
}

TEST_P(DifferenceKernel, CarriesWhatIsNotFinite) {
  for (const int64_t at : {0, 18, 4999}) {
    Arrays a = arrays_of(5000, at::kFloat, false);
    a.states[at].fill_(kNan);
    EXPECT_TRUE(std::isnan(run(a, GetParam()).change));
    a.states[at].fill_(std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isinf(run(a, GetParam()).change));
  }
}

TEST_P(DifferenceKernel, OfNothingIsZero) {
  const DifferenceSums got = run(arrays_of(0, at::kFloat, true), GetParam());
  EXPECT_EQ(got.change, 0);
  EXPECT_EQ(got.magnitude, 0);
}

INSTANTIATE_TEST_SUITE_P(Levels, DifferenceKernel, ::testing::ValuesIn(supported_isas()),
                         [](const auto& test) {
                           return std::string(kernels::isa_name(test.param));
                         });

double reference(const at::Tensor& previous, const at::Tensor& current) {
  const at::Tensor p = previous.to(at::kDouble);
  return ((p - current.to(at::kDouble)).abs().mean() / p.abs().mean()).item<double>();
}

TEST(RelativeDifference, TakesViewsAndOtherDtypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor all = tiny_weight("all", {2, 6, 10}).to(dtype);
    const at::Tensor previous = tiny_weight("previous", {2, 10, 3}).to(dtype).transpose(1, 2);
    const at::Tensor states = all.narrow(1, 0, 3), base = all.narrow(1, 3, 3);
    EXPECT_NEAR(cache::difference_sums(previous, states, base, {}).relative(),
                reference(previous, states - base), 1e-6);
    EXPECT_NEAR(cache::difference_sums(previous, states, {}, {}).relative(),
                reference(previous, states), 1e-6);
  }
}

TEST(RelativeDifference, ComparesEveryNthChannel) {
  const at::Tensor states = tiny_weight("states", {2, 3, 10}),
                   base = tiny_weight("base", {2, 3, 10});
  const at::Tensor previous = cache::every_nth_channel(tiny_weight("previous", {2, 3, 10}), 4);
  EXPECT_EQ(previous.size(-1), 3);
  EXPECT_TRUE(cache::shape_matches(previous, states, 4));
  EXPECT_FALSE(cache::shape_matches(previous, states, 5));
  EXPECT_NEAR(cache::difference_sums(previous, states, base, {.downsample_factor = 4}).relative(),
              reference(previous, cache::every_nth_channel(states - base, 4)), 1e-6);
}

TEST(RelativeDifference, ComparesImportantTokensAloneUnlessThereAreNone) {
  const at::Tensor previous = tiny_weight("previous", {1, 4, 8});
  at::Tensor states = previous * 1.01;
  states.select(1, 2).mul_(1.5);
  const cache::DifferenceOptions some{.important_condition_threshold = 0.1};
  EXPECT_NEAR(cache::difference_sums(previous, states, {}, some).relative(), 0.515, 1e-5);
  const cache::DifferenceOptions none{.important_condition_threshold = 0.9};
  EXPECT_NEAR(cache::difference_sums(previous, states, {}, none).relative(),
              reference(previous, states), 1e-6);
}

TEST(RelativeDifference, IsNotANumberWhereNothingWasAndNothingChanged) {
  const at::Tensor zero = at::zeros({1, 4, 4});
  EXPECT_TRUE(std::isnan(cache::difference_sums(zero, zero, zero, {}).relative()));
  EXPECT_TRUE(std::isinf(cache::difference_sums(zero, zero + 1, {}, {}).relative()));
}

}  // namespace
}  // namespace cachedit
