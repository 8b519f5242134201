// What flows from block to block of a transformer with a text and an image stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cachedit::nn {

/// Image tokens [B, Ni, C] and, where the model has them, text tokens [B, Nt, C]. A block may
/// return tensors that share one buffer; nobody writes into a stream that he was handed.
struct Streams {
  at::Tensor hidden;
  at::Tensor encoder;
};

/// The joint sequence [B, Nt + Ni, C], text first. Free when both streams already lie one after the
/// other in one buffer, as split_streams leaves them; a copy otherwise.
at::Tensor join_streams(const Streams& streams);

/// The streams as views of `joint`.
Streams split_streams(const at::Tensor& joint, int64_t text_length);

}  // namespace cachedit::nn
