#include "attention/aten_helpers.h"
#include "attention/dispatch.h"
#include "attention/npu.h"

namespace cachedit::attention {
namespace {

constexpr const char* kOperator = "npu::npu_fusion_attention";

Result run(const Inputs& in) {
  OperatorCall call{.where = "attention _native_npu",
                    .name = kOperator,
                    .arguments = {{"query", with_dense_last_dim(in.query)},
                                  {"key", with_dense_last_dim(in.key)},
                                  {"value", with_dense_last_dim(in.value)},
                                  {"head_num", in.query.size(2)},
                                  {"input_layout", "BSND"},
                                  {"scale", *in.scale}}};
  if (in.mask.defined()) {
    call.arguments.insert({{"atten_mask", npu_mask(in)}, {"inner_precise", kNpuCorrectEmptyRows}});
  } else if (in.is_causal) {
    call.arguments.insert({{"atten_mask", npu_causal_mask(in)}, {"sparse_mode", kNpuCausal}});
  }
  Result result{.out = call_operator(call).at(0).toTensor()};
  clear_fully_masked_rows(in, result);
  return result;
}

}  // namespace

Backend make_native_npu_backend() {
  Backend backend{.name = "_native_npu",
                  .description = "torch_npu's fusion attention for Ascend NPUs",
                  .listing = 11};
  Capabilities can = npu_capabilities();
  can.dtypes = {at::kFloat, at::kBFloat16, at::kHalf};
  backend.devices = {
      {.device = at::kPrivateUse1,
       .can = std::move(can),
       .availability =
           [](at::Device device) { return npu_operator_availability(device, kOperator); },
       .run = run,
       .auto_rank = 1,
       .note = "masks must be bool"}};
  return backend;
}

}  // namespace cachedit::attention
