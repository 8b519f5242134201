#include "nn/streams.h"

#include <ATen/ops/cat.h>

namespace cachedit::nn {
namespace {

bool adjacent(const at::Tensor& text, const at::Tensor& image) {
  const int64_t row = text.stride(1);
  const int64_t rows = text.size(1) + image.size(1);
  const bool batches_fit =
      text.size(0) == 1 || (text.stride(0) == rows * row && image.stride(0) == rows * row);
  return text.is_alias_of(image) && text.size(0) == image.size(0) &&
         text.size(2) == image.size(2) && text.stride(2) == 1 && image.stride(2) == 1 &&
         row == text.size(2) && image.stride(1) == row && batches_fit &&
         text.storage_offset() + text.size(1) * row == image.storage_offset();
}

}  // namespace

at::Tensor join_streams(const Streams& streams) {
  const at::Tensor& text = streams.encoder;
  const at::Tensor& image = streams.hidden;
  if (!adjacent(text, image)) return at::cat({text, image}, 1);
  const int64_t rows = text.size(1) + image.size(1);
  const int64_t row = text.stride(1);
  return text.as_strided({text.size(0), rows, text.size(2)}, {rows * row, row, 1});
}

Streams split_streams(const at::Tensor& joint, int64_t text_length) {
  return {.hidden = joint.narrow(1, text_length, joint.size(1) - text_length),
          .encoder = joint.narrow(1, 0, text_length)};
}

}  // namespace cachedit::nn
