#include "nn/timestep_embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>

#include <cmath>

namespace cachedit::nn {

at::Tensor sinusoidal_embedding(const at::Tensor& values, int64_t width) {
  const int64_t half = width / 2;
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(values.device());
  const at::Tensor exponents =
      at::arange(half, f32) * -std::log(10000.0) / static_cast<double>(half);
  const at::Tensor angles = values.to(at::kFloat).unsqueeze(1) * at::exp(exponents).unsqueeze(0);
  return at::cat({at::cos(angles), at::sin(angles)}, -1);
}

EmbeddingMlp::EmbeddingMlp(const WeightScope& scope, int64_t in_features, int64_t width)
    : linear_1_(scope / "linear_1", in_features, width),
      linear_2_(scope / "linear_2", width, width) {}

at::Tensor EmbeddingMlp::operator()(const at::Tensor& x) const {
  return each_alone(linear_2_, at::silu(each_alone(linear_1_, x)));
}

}  // namespace cachedit::nn
