#include "attention/npu.h"

#include <ATen/ops/ones.h>

#include "attention/availability.h"
#include "attention/dispatch.h"

namespace cachedit::attention {

at::Tensor npu_mask(const Inputs& in) {
  const at::Tensor excluded = in.mask.logical_not();  // before it grows
  return excluded.expand({in.query.size(0), excluded.size(1), in.query.size(1), in.key.size(1)})
      .contiguous();
}

at::Tensor npu_causal_mask(const Inputs& in) {
  constexpr int64_t kSide = 2048;
  return at::ones({kSide, kSide}, in.query.options().dtype(at::kBool)).triu(1);
}

Availability npu_operator_availability(at::Device device, const char* name) {
  Availability npu = npu_availability(device);
  if (!npu.available || has_operator(name)) return npu;
  return {.available = false,
          .reason = std::string("the loaded torch_npu has no operator ") + name,
          .remedy = "load a newer torch_npu with --op-library or CACHEDIT_OP_LIBRARIES"};
}

Capabilities npu_capabilities() {
  return {.dtypes = {at::kBFloat16, at::kHalf},
          .max_head_dim = 512,
          .causal = true,
          .causal_alignment = CausalAlignment::kFirst,
          .mask = true,
          .mask_under_context_parallelism = true,
          .float_mask = false,
          .gqa = true};
}

}  // namespace cachedit::attention
