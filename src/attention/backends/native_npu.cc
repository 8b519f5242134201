#include "attention/aten_helpers.h"
#include "attention/npu.h"

namespace cachedit::attention {
namespace {

constexpr const char* kOperator = "npu::npu_fusion_attention";

Result run(const Inputs& in) {
  OperatorCall call = npu_call("attention _native_npu", kOperator, in);
  call.arguments.insert({"head_num", in.query.size(2)});
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
