// What both Ascend NPU backends need: torch_npu's operators read masks the other way round.
#pragma once

#include "attention/backend.h"
#include "attention/dispatch.h"

namespace cachedit::attention {

/// The arguments that both operators take: query, key, value, layout, scale, and the mask or what
/// stands for a causal one. torch_npu's masks say what is left out, as [B, 1|H, Nq, Nkv], whole,
/// since the operators broadcast neither the batch nor the queries.
OperatorCall npu_call(const char* where, const char* name, const Inputs& inputs);

/// An NPU is there and torch_npu registered the operator.
Availability npu_operator_availability(at::Device device, const char* name);

/// What both operators take.
Capabilities npu_capabilities();

}  // namespace cachedit::attention
