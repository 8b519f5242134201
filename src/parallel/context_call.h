// What wrappers over several ranks demand of a call, and the two forms of masks that they know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "comm/communicator.h"

namespace cachedit::parallel {

/// Throws InputError unless there is one length for each rank of the group, none negative.
void check_lengths(std::string_view where, const comm::Communicator& group,
                   const std::vector<int64_t>& lengths);

/// Throws UnsupportedError for is_causal.
void check_not_causal(std::string_view where, const attention::Inputs& inputs);

/// Throws InputError naming `where` unless query, key and value fit together and are `tokens` of
/// this rank, and as check_not_causal().
void check_context_call(std::string_view where, const attention::Inputs& inputs, int64_t tokens);

enum class MaskForm {
  kNone,
  kKeys,  ///< [B|1, 1, 1, N_r]: which of this rank's keys take part
  kRows,  ///< [B|1, H|1, N_r, N]: this rank's queries by the keys of all ranks
};

struct ContextMask {
  MaskForm form = MaskForm::kNone;
  at::Tensor tensor = {};  ///< 4-D
};

/// `mask` as a 4-D view; undefined: none. Its shape beside the query's, [B, N_r, H, D], alone
/// decides the form, so that all ranks decide alike. An all-true mask stays one: other ranks' masks
/// may not be. Throws InputError for other shapes.
ContextMask read_context_mask(std::string_view where, const at::Tensor& mask,
                              const at::Tensor& query);

}  // namespace cachedit::parallel
