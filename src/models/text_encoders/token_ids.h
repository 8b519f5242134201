// Checks of the token ids that a text encoder is given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace cachedit::models {

/// Throws InputError, naming the first bad id and its place, unless `ids` is int64 [B, N] with
/// B and N at least 1 and every id in [0, vocab_size). `where` is the encoder's class.
void check_token_ids(const at::Tensor& ids, int64_t vocab_size, std::string_view where);

}  // namespace cachedit::models
