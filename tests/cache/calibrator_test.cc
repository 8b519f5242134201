// Calibrators against what they must give in closed form.
#include "cache/calibrators/calibrator.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::cache {
namespace {

using test::tiny_weight;

CalibratorConfig taylor(int64_t order) {
  CalibratorConfig c;
  c.taylorseer_order = order;
  return c;
}

CalibratorConfig foca() {
  CalibratorConfig c;
  c.calibrator_type = CalibratorType::kFoCa;
  return c;
}

CalibratorConfig dmd(int64_t history = 6) {
  CalibratorConfig c;
  c.calibrator_type = CalibratorType::kDMD;
  c.dmd_history = history;
  return c;
}

/// Follows one value over the steps of a run.
class Stream {
 public:
  explicit Stream(const CalibratorConfig& config) : calibrator_(config, nullptr) {}

  void compute(const at::Tensor& value) {
    calibrator_.begin_step();
    calibrator_.update(value, 0);
  }
  at::Tensor forecast() {
    calibrator_.begin_step();
    return calibrator_.approximate(0);
  }
  int64_t bytes() const { return calibrator_.bytes(); }

 private:
  Calibrator calibrator_;
};

/// A polynomial of degree `degree` with tensors as coefficients, in float64.
at::Tensor polynomial(int64_t degree, double t) {
  at::Tensor sum = at::zeros({2, 3, 4}, at::kDouble);
  for (int64_t i = 0; i <= degree; ++i) {
    const at::Tensor coefficient =
        tiny_weight("coefficient" + std::to_string(i), {2, 3, 4}).to(at::kDouble);
    sum = sum + coefficient * std::pow(t / 4, static_cast<double>(i));
  }
  return sum;
}

class TaylorOrder : public ::testing::TestWithParam<int64_t> {};

/// The divided differences of neighbouring steps are backward differences, so the forecast is
/// sum_i nabla^i y * k^i / i!: exact for degrees 0 and 1, whose formula has no other terms.
TEST_P(TaylorOrder, EqualsTheSumOfBackwardDifferences) {
  const int64_t order = GetParam();
  Stream stream(taylor(order));
  constexpr int kSteps = 8;
  for (int t = 0; t < kSteps; ++t) stream.compute(polynomial(order, t));
  for (int k = 1; k <= 4; ++k) {
    at::Tensor want = at::zeros({2, 3, 4}, at::kDouble);
    double factor = 1;
    for (int64_t i = 0; i <= order; ++i) {
      if (i > 0) factor *= static_cast<double>(k) / static_cast<double>(i);
      double binomial = 1;
      for (int64_t j = 0; j <= i; ++j) {  // nabla^i y = sum_j (-1)^j C(i, j) y(t - j)
        want = want + (j % 2 == 0 ? binomial : -binomial) * factor *
                          polynomial(order, kSteps - 1 - static_cast<double>(j));
        binomial *= static_cast<double>(i - j) / static_cast<double>(j + 1);
      }
    }
    const at::Tensor got = stream.forecast();
    EXPECT_LE(test::relative_error(got, want), 1e-12) << k << " steps ahead";
    if (order <= 1) {
      EXPECT_LE(test::relative_error(got, polynomial(order, kSteps - 1 + k)), 1e-12);
    }
  }
}

/// A forecast of order n reads n + 1 values only: those of a polynomial of degree n - 1 or less
/// have a vanishing n-th difference, so that order n and n - 1 agree on it.
TEST_P(TaylorOrder, HigherDifferencesOfALowerPolynomialVanish) {
  const int64_t order = std::max<int64_t>(1, GetParam());  // 0 has no lower one
  Stream full(taylor(order)), lower(taylor(order - 1));
  for (int t = 0; t < 8; ++t) {
    full.compute(polynomial(order - 1, t));
    lower.compute(polynomial(order - 1, t));
  }
  for (int k = 1; k <= 3; ++k) {
    EXPECT_LE(test::relative_error(full.forecast(), lower.forecast()), 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, TaylorOrder, ::testing::Range<int64_t>(0, 5),
                         ::testing::PrintToStringParamName());

TEST(TaylorSeer, TakesNoDifferencesFromItsFirstThreeValues) {
  Stream stream(taylor(2));
  for (int t = 0; t < 3; ++t) stream.compute(polynomial(1, t));
  EXPECT_TRUE(test::same_values(stream.forecast(), polynomial(1, 2)));
}

TEST(TaylorSeer, DividesByTheStepsBetweenComputedOnes) {
  Stream stream(taylor(1));
  for (int t = 0; t < 4; ++t) stream.compute(polynomial(1, t));
  stream.forecast();
  stream.forecast();
  stream.compute(polynomial(1, 6));
  for (int t = 7; t < 10; ++t) {
    EXPECT_LE(test::relative_error(stream.forecast(), polynomial(1, t)), 1e-12) << t;
  }
}

TEST(FoCa, FollowsTheTrapezoidalRuleAndLeansBackBeyondThreeSteps) {
  Stream stream(foca());
  const at::Tensor a = polynomial(2, 0), b = polynomial(2, 1);
  Stream alone(foca());
  alone.compute(a);
  EXPECT_TRUE(test::same_values(alone.forecast(), a)) << "one value: as it was";
  stream.compute(a);
  stream.compute(b);
  const at::Tensor slope = b - a;
  const at::Tensor first = b + slope;  // both slopes are the anchor's
  EXPECT_LE(test::relative_error(stream.forecast(), first), 1e-14);
  const at::Tensor second = b + 1.0 * (slope + (first - b));
  EXPECT_LE(test::relative_error(stream.forecast(), second), 1e-14);
  const at::Tensor third = b + 1.5 * (slope + (second - first));
  EXPECT_LE(test::relative_error(stream.forecast(), third), 1e-14);
  const at::Tensor ahead = b + 1.5 * (slope + (third - second));
  EXPECT_LE(test::relative_error(stream.forecast(), 0.75 * ahead + 0.25 * b), 1e-14);
}

/// Sums of one real and one complex pair of damped exponentials, one set of modes per batch item.
at::Tensor exponentials(double t) {
  std::vector<at::Tensor> items;
  for (int item = 0; item < 2; ++item) {
    const std::string name = "mode" + std::to_string(item);
    const double decay = 0.9 - 0.05 * item, omega = 0.4 + 0.2 * item;
    const auto mode = [&](const char* part) {
      return tiny_weight(name + part, {1, 5, 6}).to(at::kDouble);
    };
    items.push_back(mode("a") * std::pow(0.97, t) +
                    std::pow(decay, t) *
                        (mode("b") * std::cos(omega * t) + mode("c") * std::sin(omega * t)));
  }
  return at::cat(items);
}

TEST(Dmd, ContinuesSumsOfDampedExponentials) {
  for (const int64_t spacing : {1, 2, 3}) {
    SCOPED_TRACE(spacing);
    Stream stream(dmd());
    int64_t t = 0;
    for (int64_t snapshot = 0; snapshot < 6; ++snapshot) {
      stream.compute(exponentials(static_cast<double>(t++)));
      for (int64_t i = 1; i < spacing && snapshot < 5; ++i, ++t) stream.forecast();
    }
    for (int ahead = 0; ahead < 5; ++ahead, ++t) {
      EXPECT_LE(test::relative_error(stream.forecast(), exponentials(static_cast<double>(t))), 1e-5)
          << "step " << t;
    }
  }
}

TEST(Dmd, ReusesTheNewestValueWhereNothingCanBeFitted) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float last : {0.0f, 1.0f, infinity, -infinity, infinity - infinity}) {
    Stream stream(dmd());
    for (int i = 0; i < 5; ++i) stream.compute(at::zeros({1, 4, 4}));
    const at::Tensor newest = at::full({1, 4, 4}, last);
    stream.compute(newest);
    EXPECT_TRUE(test::same_values(stream.forecast(), newest)) << last;
  }
}

TEST(Dmd, ARankBeyondThatOfTheValuesDoesNoHarm) {
  for (const int64_t rank : {3, 4, 5, 50}) {
    CalibratorConfig config = dmd();
    config.dmd_rank = rank;
    Stream stream(config);
    for (int t = 0; t < 6; ++t) stream.compute(exponentials(t));
    for (int t = 6; t < 9; ++t) {
      EXPECT_LE(test::relative_error(stream.forecast(), exponentials(t)), 1e-3)
          << "rank " << rank << ", step " << t;
    }
  }
}

TEST(Dmd, ExtrapolatesLinearlyFromThreeValues) {
  Stream stream(dmd());
  for (const double t : {0, 1}) stream.compute(polynomial(1, t));
  stream.forecast();
  stream.compute(polynomial(1, 3));
  // The change over two updates, from step 0 on, by the two steps since the last one.
  const at::Tensor slope = (polynomial(1, 3) - polynomial(1, 0)) / 2;
  EXPECT_LE(test::relative_error(stream.forecast(), polynomial(1, 3) + slope), 1e-12);
}

TEST(Calibrators, ForgetValuesOfAnotherShape) {
  for (const CalibratorConfig& config : {taylor(2), foca(), dmd()}) {
    Stream changed(config), fresh(config);
    for (int t = 0; t < 6; ++t) changed.compute(exponentials(t));
    const auto value = [](int t) { return polynomial(3, t); };
    for (int t = 0; t < 6; ++t) {
      changed.compute(value(t));
      fresh.compute(value(t));
    }
    EXPECT_LE(test::relative_error(changed.forecast(), fresh.forecast()), 1e-9) << strify(config);
    EXPECT_EQ(changed.bytes(), fresh.bytes()) << strify(config);
  }
}

TEST(Calibrators, KeepTheirDtypeAndSlotsApart) {
  for (const CalibratorConfig& config : {taylor(1), foca(), dmd()}) {
    Calibrator calibrator(config, nullptr);
    for (int t = 0; t < 6; ++t) {
      calibrator.begin_step();
      calibrator.update(exponentials(t).to(at::kBFloat16), 0);
      calibrator.update(at::full({3}, 7.0f), 1);
    }
    calibrator.begin_step();
    EXPECT_EQ(calibrator.approximate(0).scalar_type(), at::kBFloat16);
    EXPECT_LE(test::max_abs_error(calibrator.approximate(1), at::full({3}, 7.0f)), 1e-5);
    EXPECT_FALSE(calibrator.approximate(2).defined()) << "never updated";
    EXPECT_GT(calibrator.bytes(), 0);
  }
}

}  // namespace
}  // namespace cachedit::cache
