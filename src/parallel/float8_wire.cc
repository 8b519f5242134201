#include "parallel/float8_wire.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>

#include <limits>

namespace cachedit::parallel {
namespace {

constexpr double kLargest = 448;  // of e4m3
constexpr int64_t kScaleBytes = sizeof(float);

}  // namespace

at::Tensor pack_float8(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.to(at::kFloat);
  const int64_t width = rows.size(-1);
  // ATen's conversion gives NaN beyond 448, which a scale that lost digits as a denormal, or became
  // zero, would lead to.
  const at::Tensor scale = at::amax(rows.abs(), -1, /*keepdim=*/true)
                               .div_(kLargest)
                               .clamp_min_(std::numeric_limits<float>::min());
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.back() = width + kScaleBytes;
  at::Tensor packed = at::empty(shape, rows.options().dtype(at::kByte));
  packed.narrow(-1, 0, width).copy_((rows / scale).to(at::kFloat8_e4m3fn).view(at::kByte));
  packed.narrow(-1, width, kScaleBytes).copy_(scale.view(at::kByte));
  return packed;
}

at::Tensor unpack_float8(const at::Tensor& packed, at::ScalarType dtype) {
  const int64_t width = packed.size(-1) - kScaleBytes;
  const at::Tensor scale = packed.narrow(-1, width, kScaleBytes).contiguous().view(at::kFloat);
  const at::Tensor values = packed.narrow(-1, 0, width).contiguous().view(at::kFloat8_e4m3fn);
  return values.to(at::kFloat).mul_(scale).to(dtype);
}

}  // namespace cachedit::parallel
