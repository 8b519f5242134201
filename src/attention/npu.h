// What both Ascend NPU backends need: torch_npu's operators read masks the other way round.
#pragma once

#include "attention/backend.h"

namespace cachedit::attention {

/// torch_npu's meaning: true is left out. [B, 1|H, Nq, Nkv], whole, since these operators broadcast
/// neither the batch nor the queries.
at::Tensor npu_mask(const Inputs& inputs);

/// The 2048 x 2048 upper triangle that stands for a causal mask of any size, aligned at the first
/// rows, with sparse_mode kNpuCausal.
at::Tensor npu_causal_mask(const Inputs& inputs);
inline constexpr int64_t kNpuCausal = 2;

/// inner_precise that treats rows without any key; needed with masks only.
inline constexpr int64_t kNpuCorrectEmptyRows = 2;

/// An NPU is there and torch_npu registered the operator.
Availability npu_operator_availability(at::Device device, const char* name);

/// What both operators take.
Capabilities npu_capabilities();

}  // namespace cachedit::attention
