#include "nn/modulation.h"

namespace cachedit::nn {

Modulation::Modulation(const WeightScope& scope, int64_t width, int64_t parts)
    : parts_(parts), linear_(scope / "linear", width, parts * width) {}

std::vector<at::Tensor> Modulation::operator()(const at::Tensor& activated_conditioning) const {
  return linear_(activated_conditioning).chunk(parts_, 1);
}

}  // namespace cachedit::nn
