#include "cache/calibrators/calibrator.h"

#include "base/fail.h"
#include "cache/calibrators/dmd.h"
#include "cache/calibrators/foca.h"
#include "cache/calibrators/linear.h"
#include "cache/calibrators/taylorseer.h"

namespace cachedit::cache {
namespace {

constexpr const char* kWhere = "calibrator_config";
constexpr int64_t kMaxTaylorOrder = 4;

std::function<std::unique_ptr<Forecaster>()> factory(const CalibratorConfig& config,
                                                     const LinearSteps* weights) {
  switch (config.calibrator_type) {
    case CalibratorType::kTaylorSeer:
      return [order = config.taylorseer_order] { return std::make_unique<TaylorSeer>(order); };
    case CalibratorType::kFoCa:
      return [] { return std::make_unique<FoCa>(); };
    case CalibratorType::kDMD:
      return
          [options = DmdOptions{
               .history = config.dmd_history, .rank = config.dmd_rank, .ridge = config.dmd_ridge}] {
            return std::make_unique<Dmd>(options);
          };
    case CalibratorType::kLinear:
      if (weights == nullptr) {
        fail<ConfigError>(kWhere,
                          "the linear calibrator has no weights for this block list; fit them with "
                          "`cachedit tune` for the same lists");
      }
      return [weights] { return std::make_unique<Linear>(*weights); };
  }
  fail<ConfigError>(kWhere, "calibrator_type has no such value");
}

}  // namespace

void check(const CalibratorConfig& config) {
  if (config.taylorseer_order < 0 || config.taylorseer_order > kMaxTaylorOrder) {
    fail<ConfigError>(kWhere, "taylorseer_order must be 0 to ", kMaxTaylorOrder, ": got ",
                      config.taylorseer_order);
  }
  if (config.dmd_history < 2) {
    fail<ConfigError>(kWhere, "dmd_history must be at least 2 (4 for a fit): got ",
                      config.dmd_history);
  }
  if (config.dmd_rank < 0) {
    fail<ConfigError>(kWhere, "dmd_rank must be at least 0: got ", config.dmd_rank);
  }
  if (!(config.dmd_ridge >= 0)) {
    fail<ConfigError>(kWhere, "dmd_ridge must be at least 0: got ", config.dmd_ridge);
  }
  const std::string& precision = config.dmd_svd_precision;
  if (precision != "low" && precision != "medium" && precision != "high") {
    fail<ConfigError>(kWhere, "dmd_svd_precision must be low, medium or high: got ", precision);
  }
  if (config.calibrator_type == CalibratorType::kLinear &&
      config.linear_coefficients_path.empty()) {
    fail<ConfigError>(kWhere,
                      "the linear calibrator needs linear_coefficients_path: make the file with "
                      "`cachedit tune`");
  }
}

Calibrator::Calibrator(const CalibratorConfig& config, const LinearSteps* weights) {
  check(config);
  make_ = factory(config, weights);
}

void Calibrator::begin_step() {
  for (auto& [slot, state] : states_) state->begin_step();
}

void Calibrator::update(const at::Tensor& value, int64_t slot) {
  std::unique_ptr<Forecaster>& state = states_[slot];
  if (!state) state = make_();
  state->update(value);
}

int64_t Calibrator::bytes() const {
  int64_t sum = 0;
  for (const auto& [slot, state] : states_) sum += state->bytes();
  return sum;
}

at::Tensor Calibrator::approximate(int64_t slot) {
  const auto found = states_.find(slot);
  return found == states_.end() ? at::Tensor() : found->second->approximate();
}

}  // namespace cachedit::cache
