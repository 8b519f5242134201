#include "nn/modulation.h"

#include <algorithm>

#include "base/fail.h"

namespace cachedit::nn {

Modulation::Modulation(const WeightScope& scope, int64_t width, int64_t parts)
    : parts_(parts), linear_(scope / "linear", width, parts * width) {}

at::Tensor Modulation::operator()(const at::Tensor& activated_conditioning) const {
  return each_alone(linear_, activated_conditioning);
}

std::vector<at::Tensor> ModulationTable::vectors(const Modulation& modulation, int64_t step) {
  const int64_t steps = conditioning_.size(0);
  if (step < 0 || step >= steps) {
    fail<InputError>("modulation", "the run was prepared for ", steps, " steps: got number ", step);
  }
  Rows& rows = rows_[&modulation];
  if (!rows.values.defined() || step < rows.first || step >= rows.first + rows.values.size(0)) {
    rows.first = step;
    rows.values = modulation(conditioning_.narrow(0, step, std::min(kStepsAtOnce, steps - step)));
  }
  return rows.values.select(0, step - rows.first).chunk(modulation.parts(), 1);
}

}  // namespace cachedit::nn
