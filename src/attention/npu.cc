#include "attention/npu.h"

#include <ATen/ops/ones.h>

#include "attention/aten_helpers.h"
#include "attention/availability.h"

namespace cachedit::attention {

namespace {

/// sparse_mode of the 2048 x 2048 upper triangle, which stands for a causal mask of any size,
/// aligned at the first rows.
constexpr int64_t kCausal = 2;
/// inner_precise that treats rows without any key; needed with masks only.
constexpr int64_t kCorrectEmptyRows = 2;

at::Tensor inverted_mask(const Inputs& in) {
  const at::Tensor excluded = in.mask.logical_not();  // before it grows
  return excluded.expand({in.query.size(0), excluded.size(1), in.query.size(1), in.key.size(1)})
      .contiguous();
}

at::Tensor causal_mask(const Inputs& in) {
  constexpr int64_t kSide = 2048;
  return at::ones({kSide, kSide}, in.query.options().dtype(at::kBool)).triu(1);
}

}  // namespace

OperatorCall npu_call(const char* where, const char* name, const Inputs& in) {
  OperatorCall call{.where = where,
                    .name = name,
                    .arguments = {{"query", with_dense_last_dim(in.query)},
                                  {"key", with_dense_last_dim(in.key)},
                                  {"value", with_dense_last_dim(in.value)},
                                  {"input_layout", "BSND"},
                                  {"scale", *in.scale}}};
  if (in.mask.defined()) {
    call.arguments.insert(
        {{"atten_mask", inverted_mask(in)}, {"inner_precise", kCorrectEmptyRows}});
  } else if (in.is_causal) {
    call.arguments.insert({{"atten_mask", causal_mask(in)}, {"sparse_mode", kCausal}});
  }
  return call;
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
