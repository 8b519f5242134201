#include "attention/aten_helpers.h"
#include "attention/npu.h"

namespace cachedit::attention {
namespace {

constexpr const char* kOperator = "npu::npu_fused_infer_attention_score";

Result run(const Inputs& in) {
  OperatorCall call = npu_call("attention _npu_fia", kOperator, in);
  call.arguments.insert({{"num_heads", in.query.size(2)},
                         {"num_key_value_heads", in.key.size(2)},
                         {"softmax_lse_flag", in.return_lse}});
  const std::vector<c10::IValue> out = call_operator(call);
  Result result{.out = out.at(0).toTensor()};
  if (in.return_lse) {
    // [B, H, Nq, 1]
    result.lse =
        out.at(1).toTensor().reshape({in.query.size(0), in.query.size(2), in.query.size(1)});
  }
  clear_fully_masked_rows(in, result);
  return result;
}

}  // namespace

Backend make_npu_fia_backend() {
  Backend backend{.name = "_npu_fia",
                  .description = "torch_npu's fused inference attention, with log-sum-exp",
                  .listing = 12};
  Capabilities can = npu_capabilities();
  can.per_head_mask = false;
  can.lse = true;
  backend.devices = {
      {.device = at::kPrivateUse1,
       .can = std::move(can),
       .availability =
           [](at::Device device) { return npu_operator_availability(device, kOperator); },
       .run = run,
       .note = "masks must be bool and one for all heads"}};
  return backend;
}

}  // namespace cachedit::attention
