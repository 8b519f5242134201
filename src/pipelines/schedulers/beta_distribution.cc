#include "pipelines/schedulers/beta_distribution.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"

namespace cachedit::pipelines {
namespace {

void check(double value, double alpha, double beta) {
  if (!(value >= 0 && value <= 1)) {
    fail<InputError>("beta distribution", "argument must lie in [0, 1]: got ", value);
  }
  if (!(alpha > 0 && alpha <= 50 && beta > 0 && beta <= 50)) {
    fail<InputError>("beta distribution", "parameters must lie in (0, 50]: got ", alpha, " and ",
                     beta);
  }
}

/// 1 / B(alpha, beta). tgamma rather than lgamma, which writes a global (signgam).
double inverse_beta_function(double alpha, double beta) {
  return std::tgamma(alpha + beta) / std::tgamma(alpha) / std::tgamma(beta);
}

/// The density at x, given 1 - x apart so that it stays exact near x = 1.
double density(double x, double complement, double alpha, double beta) {
  return inverse_beta_function(alpha, beta) * std::pow(x, alpha - 1) *
         std::pow(complement, beta - 1);
}

/// Coefficient j >= 1 of the continued fraction of I_x (DLMF 8.17.22).
double fraction_coefficient(int j, double x, double alpha, double beta) {
  const int half = j / 2;
  const double m = half;
  if (j % 2 == 0) return m * (beta - m) * x / ((alpha + 2 * m - 1) * (alpha + 2 * m));
  return -(alpha + m) * (alpha + beta + m) * x / ((alpha + 2 * m) * (alpha + 2 * m + 1));
}

/// 1 + d1 / (1 + d2 / (1 + ...)) by the modified Lentz method. Converges fast for x below
/// (alpha + 1) / (alpha + beta + 2).
double continued_fraction(double x, double alpha, double beta) {
  constexpr double kTiny = 1e-300;  // in place of a partial result that is 0
  constexpr double kPrecision = std::numeric_limits<double>::epsilon() / 2;
  constexpr int kMaxTerms = 500;
  const auto nonzero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double value = 1;
  double numerator = 1;
  double denominator = 1;
  for (int j = 1; j <= kMaxTerms; ++j) {
    const double coefficient = fraction_coefficient(j, x, alpha, beta);
    denominator = j == 1 ? 1 : 1 / nonzero(1 + coefficient * denominator);
    numerator = nonzero(1 + coefficient / numerator);
    value *= numerator * denominator;
    if (std::abs(numerator * denominator - 1) <= kPrecision) break;
  }
  return value;
}

/// I_x by the fraction that converges here, without the swap of the two tails.
double lower_tail(double x, double complement, double alpha, double beta) {
  return inverse_beta_function(alpha, beta) * std::pow(x, alpha) * std::pow(complement, beta) /
         alpha / continued_fraction(x, alpha, beta);
}

}  // namespace

double beta_cumulative(double x, double alpha, double beta) {
  check(x, alpha, beta);
  if (x == 0 || x == 1) return x;
  if (x < (alpha + 1) / (alpha + beta + 2)) return lower_tail(x, 1 - x, alpha, beta);
  return 1 - lower_tail(1 - x, x, beta, alpha);
}

double beta_quantile(double probability, double alpha, double beta) {
  check(probability, alpha, beta);
  if (probability == 0 || probability == 1) return probability;
  // The median of a symmetric distribution, exactly: a level half-way between two float32 values
  // would otherwise round to the wrong side.
  if (alpha == beta && probability == 0.5) return 0.5;
  // Solving for the smaller tail keeps the relative precision of small answers; 1 - p is exact.
  if (probability > 0.5) return 1 - beta_quantile(1 - probability, beta, alpha);

  // Newton from the leading term of the series, kept inside a bracket that every step tightens;
  // where Newton leaves the bracket, the midpoint is taken.
  double low = 0;
  double high = 1;
  const double leading = probability * alpha / inverse_beta_function(alpha, beta);
  double x = std::min(std::pow(leading, 1 / alpha), 0.5);
  constexpr int kMaxSteps = 200;
  for (int step = 0; step < kMaxSteps; ++step) {
    const double excess = beta_cumulative(x, alpha, beta) - probability;
    if (excess == 0) break;
    (excess > 0 ? high : low) = x;
    double next = x - excess / density(x, 1 - x, alpha, beta);
    if (!(next > low && next < high)) next = low + (high - low) / 2;
    const bool settled = std::abs(next - x) <= std::numeric_limits<double>::epsilon() * x;
    x = next;
    if (settled || next == low || next == high) break;
  }
  return x;
}

}  // namespace cachedit::pipelines
