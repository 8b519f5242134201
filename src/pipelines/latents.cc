#include "pipelines/latents.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

namespace cachedit::pipelines {

at::Generator make_generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

at::Tensor draw_noise(at::IntArrayRef shape, at::Generator& generator, at::ScalarType dtype,
                      at::Device device) {
  return at::randn(shape, generator, at::TensorOptions().dtype(dtype)).to(device);
}

at::Tensor pack_latents(const at::Tensor& latents) {
  const int64_t b = latents.size(0), c = latents.size(1);
  const int64_t rows = latents.size(2) / 2, columns = latents.size(3) / 2;
  return latents.view({b, c, rows, 2, columns, 2})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({b, rows * columns, c * 4});
}

at::Tensor unpack_latents(const at::Tensor& packed, int64_t grid_height, int64_t grid_width) {
  const int64_t b = packed.size(0), c = packed.size(2) / 4;
  return packed.view({b, grid_height, grid_width, c, 2, 2})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({b, c, grid_height * 2, grid_width * 2});
}

}  // namespace cachedit::pipelines
