// Tensors as float8 for the way between ranks: e4m3 with an fp32 scale for each token and head, in
// one tensor of bytes, so that both are one message.
#pragma once

#include <ATen/core/Tensor.h>

namespace cachedit::parallel {

/// [..., D] of any floating dtype as bytes [..., D + 4]: the largest magnitude of each row becomes
/// 448. Rows of zeros stay zeros; rows with an infinity or NaN come back as NaN.
at::Tensor pack_float8(const at::Tensor& tensor);

/// The other way round; contiguous, of that dtype.
at::Tensor unpack_float8(const at::Tensor& packed, at::ScalarType dtype);

}  // namespace cachedit::parallel
