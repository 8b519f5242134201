#include "cache/calibrators/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"

namespace cachedit::cache {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FitWeights, FindsTheWeightsOfAWeightedSum) {
  const at::Tensor a = at::randn({64}), b = at::randn({64}), c = at::randn({64});
  const std::vector<double> weights = fit_weights({{a, b, c}}, {2.5 * a - 1.25 * b + 0.5 * c});
  EXPECT_THAT(weights,
              ElementsAre(DoubleNear(2.5, 1e-3), DoubleNear(-1.25, 1e-3), DoubleNear(0.5, 1e-3)));
}

TEST(FitWeights, SamplesAddUp) {
  const at::Tensor a = at::ones({4}), b = at::full({4}, 2.0);
  // Two samples that ask for 1 and 3 with equal force: the mean.
  EXPECT_THAT(fit_weights({{a}, {a}}, {a, 3 * a}), ElementsAre(DoubleNear(2.0, 1e-4)));
  // A larger sample weighs as its energy: (1 * 1 + 4 * 3) / 5.
  EXPECT_THAT(fit_weights({{a}, {b}}, {a, 3 * b}), ElementsAre(DoubleNear(2.6, 1e-4)));
}

TEST(FitWeights, NothingToLearnFromMeansReuse) {
  const at::Tensor zero = at::full({4}, 0.0);
  EXPECT_THAT(fit_weights({{zero, zero}}, {zero}),
              ElementsAre(DoubleNear(1.0, 1e-9), DoubleNear(0.0, 1e-9)));
}

TEST(Linear, AddsUpTheLastComputedValues) {
  const LinearSteps steps = {{2, {.from = {1, 0}, .weights = {2.0, -1.0}}},
                             {4, {.from = {3, 1, 0}, .weights = {1.0, 1.0, 0.5}}}};
  Linear forecaster(steps);
  forecaster.update(at::full({3}, 1.0));  // step 0 creates the state
  forecaster.begin_step();
  forecaster.update(at::full({3}, 4.0));
  forecaster.begin_step();
  EXPECT_TRUE(forecaster.approximate().equal(at::full({3}, 7.0)));
  forecaster.begin_step();
  forecaster.update(at::full({3}, 10.0));
  forecaster.begin_step();
  EXPECT_TRUE(forecaster.approximate().equal(at::full({3}, 14.5)));
}

TEST(Linear, RefusesARunThatItWasNotFittedFor) {
  const LinearSteps steps = {{2, {.from = {1}, .weights = {1.0}}}};
  Linear forecaster(steps);
  forecaster.update(at::ones({2}));
  forecaster.begin_step();
  test::expect_error<ConfigError>(
      [&] { forecaster.approximate(); },
      AllOf(HasSubstr("no weights for step 1"), HasSubstr("steps_computation_mask")));
  forecaster.begin_step();  // step 1 was not computed here
  test::expect_error<ConfigError>([&] { forecaster.approximate(); }, HasSubstr("computed step 1"));
}

}  // namespace
}  // namespace cachedit::cache
