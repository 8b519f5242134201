#include "parallel/merge_states.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>

#include <limits>

namespace cachedit::parallel {

void MergedStates::add(const attention::Result& part) {
  const at::ScalarType given = part.out.scalar_type();
  const at::ScalarType type = in_fp32_ && at::isReducedFloatingType(given) ? at::kFloat : given;
  if (!merged_.out.defined()) {
    merged_ = {.out = part.out.to(type), .lse = part.lse, .backend = part.backend};
    return;
  }
  // The part's share of the sum of exponentials: e^b / (e^a + e^b). Where both have no key,
  // -inf - -inf is NaN, and the part has nothing to add.
  constexpr float kNoKey = -std::numeric_limits<float>::infinity();
  const at::Tensor share =
      at::sigmoid(part.lse - merged_.lse).masked_fill_(part.lse == kNoKey, 0);  // [B, H, Nq]
  merged_.out.lerp_(part.out.to(type), share.transpose(1, 2).unsqueeze(-1).to(type));
  merged_.lse = at::logaddexp(merged_.lse, part.lse);
}

attention::Result MergedStates::finish(at::ScalarType dtype, bool return_lse) const {
  attention::Result result = merged_;
  result.out = merged_.out.to(dtype);
  if (!return_lse) result.lse = at::Tensor();
  return result;
}

}  // namespace cachedit::parallel
