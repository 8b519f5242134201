// Pieces that backends calling ATen's or another library's operators share.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "attention/attention.h"

namespace cachedit::attention {

/// [B, N, H, D] as the [B, H, N, D] that ATen's operators take; a view.
at::Tensor heads_first(const at::Tensor& t);

/// The tensor itself where its last dimension is dense, else a copy: some operators read others
/// wrongly without saying so.
at::Tensor with_dense_last_dim(const at::Tensor& t);

/// The mask as numbers of the query's dtype that are added: 0 and -inf for bool.
at::Tensor additive_mask(const Inputs& inputs);

/// [b|1, h|1, q|1]: true where the mask lets no key take part.
at::Tensor fully_masked_rows(const at::Tensor& mask);

/// Gives those rows zeros and lse = -inf, for operators that leave NaN or a mean there.
void clear_fully_masked_rows(const Inputs& inputs, Result& result);

/// The same for the first rows of causal attention aligned at the last ones, where queries
/// outnumber keys: no key takes part in them.
void clear_rows_before_first_key(const Inputs& inputs, Result& result);

/// Attention by its definition in fp32, a block of query rows at a time, so that memory stays
/// O(block x Nkv). Causal masks align at the first rows.
Result attention_by_definition(const Inputs& inputs);

}  // namespace cachedit::attention
