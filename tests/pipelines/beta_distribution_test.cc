// Beta quantiles against scipy's (goldens/make_schedules.py).
#include "pipelines/schedulers/beta_distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cachedit/error.h"
#include "io/json_config.h"
#include "support/temp_dir.h"

namespace cachedit::pipelines {
namespace {

TEST(BetaDistribution, QuantilesEqualScipy) {
  const auto golden = io::read_json_file(test::golden("schedules") / "beta_quantiles.json");
  for (const auto& example : golden["cases"]) {
    EXPECT_NEAR(beta_quantile(example["probability"], example["alpha"], example["beta"]),
                example["quantile"].get<double>(), 1e-14)
        << example.dump();
  }
  EXPECT_GT(golden["cases"].size(), 100U);
}

TEST(BetaDistribution, QuantileUndoesTheCumulative) {
  for (const double alpha : {0.2, 0.6, 1.0, 4.0, 30.0}) {
    for (const double beta : {0.3, 0.6, 2.5, 20.0}) {
      double previous = 0;
      for (int i = 1; i < 64; ++i) {
        const double probability = i / 64.0;
        const double x = beta_quantile(probability, alpha, beta);
        EXPECT_GE(x, previous);
        // The probability found again, up to how far one float64 step of x moves it: steep near
        // x = 1 for beta < 1.
        const double step = std::nextafter(x, 1.0) - std::nextafter(x, 0.0);
        const double slack = std::abs(beta_cumulative(std::min(x + step, 1.0), alpha, beta) -
                                      beta_cumulative(std::max(x - step, 0.0), alpha, beta));
        EXPECT_NEAR(beta_cumulative(x, alpha, beta), probability, 1e-13 + slack);
        previous = x;
      }
    }
  }
}

TEST(BetaDistribution, KnownClosedForms) {
  for (const double x : {0.0, 0.01, 0.25, 0.5, 0.9, 1.0}) {
    EXPECT_NEAR(beta_cumulative(x, 1, 1), x, 1e-15);      // uniform
    EXPECT_NEAR(beta_cumulative(x, 2, 1), x * x, 1e-15);  // density 2x
    EXPECT_NEAR(beta_cumulative(x, 0.6, 0.6) + beta_cumulative(1 - x, 0.6, 0.6), 1, 1e-14);
  }
  EXPECT_EQ(beta_quantile(0.0, 0.6, 0.6), 0.0);
  EXPECT_EQ(beta_quantile(1.0, 0.6, 0.6), 1.0);
  EXPECT_EQ(beta_quantile(0.5, 0.6, 0.6), 0.5);
}

TEST(BetaDistribution, RefusesWhatHasNoMeaning) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {-0.1, 1.1, nan}) EXPECT_THROW(beta_quantile(bad, 0.6, 0.6), InputError);
  for (const double bad : {0.0, -1.0, 51.0, nan}) {
    EXPECT_THROW(beta_quantile(0.5, bad, 0.6), InputError);
    EXPECT_THROW(beta_cumulative(0.5, 0.6, bad), InputError);
  }
}

}  // namespace
}  // namespace cachedit::pipelines
