// Dynamic mode decomposition (Schmid 2010): the values follow a linear map, whose eigenvalues are
// found from equally spaced snapshots and raised to the steps ahead. Taylor until there are four.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cache/calibrators/calibrator.h"

namespace cachedit::cache {

struct DmdOptions {
  int64_t history = 6;
  int64_t rank = 0;
  double ridge = 1e-8;
};

class Dmd final : public Forecaster {
 public:
  explicit Dmd(const DmdOptions& options) : options_(options) {}

  void update(const at::Tensor& value) override;
  at::Tensor approximate() override;
  int64_t bytes() const override;

 private:
  struct Snapshot {
    int64_t step;
    at::Tensor value;
  };
  /// Of one batch item. A forecast is snapshots * real(mixing * (eigenvalues^k * amplitudes)):
  /// everything but the snapshots has the size of the window.
  struct Fit {
    at::Tensor snapshots;    ///< float64 [n - 1, d], all but the oldest
    at::Tensor mixing;       ///< complex128 [n - 1, r]
    at::Tensor eigenvalues;  ///< complex128 [r]
    at::Tensor amplitudes;   ///< complex128 [r]
  };

  std::vector<at::Tensor> uniform_tail(int64_t& spacing) const;
  std::vector<Fit> fit(const std::vector<at::Tensor>& tail) const;
  /// Of one item's snapshots [n, d]; empty where they are all zero or not finite.
  std::optional<Fit> fit_one(const at::Tensor& trajectory) const;
  /// Undefined where the forecast is not finite.
  at::Tensor evaluate(double horizon) const;

  DmdOptions options_;
  std::deque<Snapshot> snapshots_;
  /// Of the current snapshots, made at the first forecast from them; empty if degenerate.
  std::optional<std::vector<Fit>> fits_;
  at::Tensor before_last_;  ///< value of the update before the last one
  at::Tensor slope_;
};

}  // namespace cachedit::cache
