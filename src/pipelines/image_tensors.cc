#include "pipelines/image_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

namespace cachedit::pipelines {

at::Tensor image_to_pixels(const Image& image) {
  // from_blob takes a mutable pointer; nothing writes through it.
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(image.pixels.data()),
                                         {1, image.height, image.width, 3}, at::kByte);
  return (bytes.to(at::kFloat) / 255.0 * 2.0 - 1.0).permute({0, 3, 1, 2}).contiguous();
}

std::vector<Image> pixels_to_images(const at::Tensor& pixels) {
  const at::Tensor unit = (pixels * 0.5 + 0.5).clamp(0, 1);
  const at::Tensor bytes = (unit.to(at::kCPU, at::kFloat).permute({0, 2, 3, 1}) * 255.0)
                               .round()
                               .to(at::kByte)
                               .contiguous();
  std::vector<Image> images;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    const at::Tensor one = bytes.select(0, i);
    Image image{.width = one.size(1), .height = one.size(0), .pixels = {}};
    image.pixels.resize(static_cast<size_t>(one.numel()));
    std::memcpy(image.pixels.data(), one.const_data_ptr<uint8_t>(), image.pixels.size());
    images.push_back(std::move(image));
  }
  return images;
}

}  // namespace cachedit::pipelines
