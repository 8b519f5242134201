// The quantile of the beta distribution, which the beta noise schedule is spaced by.
// Lee et al. 2024, arXiv 2407.12173.
#pragma once

namespace cachedit::pipelines {

/// I_x(alpha, beta), the share of the distribution below x. Both parameters must lie in (0, 50],
/// where their gamma functions stay in range. Throws InputError outside that and for x outside
/// [0, 1].
double beta_cumulative(double x, double alpha, double beta);

/// The x with I_x(alpha, beta) = probability: what scipy calls beta.ppf. Absolute error below 1e-14
/// for the parameters in use (0.6, 0.6). Same limits as above.
double beta_quantile(double probability, double alpha, double beta);

}  // namespace cachedit::pipelines
