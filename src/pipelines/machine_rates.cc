#include "pipelines/machine_rates.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "base/stopwatch.h"
#include "nn/linear_forms.h"

namespace cachedit::pipelines {
namespace {

/// Of the fastest of several calls, since other processes only ever add to it.
double least_seconds(const std::function<void()>& call) {
  constexpr int kFewest = 3;
  constexpr double kEnoughSeconds = 0.2;
  call();  // starts threads
  double least = std::numeric_limits<double>::infinity();
  const Stopwatch all;
  for (int i = 0; i < kFewest || (i < 1000 && all.seconds() < kEnoughSeconds); ++i) {
    const Stopwatch watch;
    call();
    least = std::min(least, watch.seconds());
  }
  return std::max(least, 1e-9);
}

}  // namespace

MachineRates measure_rates(int64_t heads, int64_t head_dim, int64_t tokens, at::ScalarType dtype,
                           const attention::Attention& attention) {
  constexpr int64_t kMaxRows = 512, kMaxKeys = 2048, kMaxHeads = 4;
  const int64_t width = heads * head_dim;
  const int64_t rows = std::min(tokens, kMaxRows), keys = std::min(tokens, kMaxKeys);
  const auto ones = [&](at::IntArrayRef sizes) {
    return at::ones(sizes, at::TensorOptions().dtype(dtype));
  };
  MachineRates rates;

  const at::Tensor weight = ones({4 * width, width}), x = ones({1, rows, width});
  const nn::LinearWeight plain{.values = weight};
  const std::unique_ptr<nn::LinearForm> layer =
      nn::has_packed_form(at::kCPU, dtype) ? nn::make_packed_form({plain}, at::Tensor(), dtype)
                                           : nn::make_aten_form(weight, at::Tensor());
  const nn::LinearCall product{.input = x, .out = ones({1, rows, 4 * width})};
  rates.gemm_flops = 2.0 * static_cast<double>(weight.numel() * rows) /
                     least_seconds([&] { layer->run(product); });

  const at::Tensor tokens_first = ones({1, keys, std::min(heads, kMaxHeads), head_dim});
  const attention::Inputs inputs{.query = tokens_first, .key = tokens_first, .value = tokens_first};
  rates.attention_flops = 4.0 * static_cast<double>(tokens_first.numel() * keys) /
                          least_seconds([&] { attention(inputs); });

  const at::Tensor a = ones({keys, width}), b = ones({keys, width});
  at::Tensor out = ones({keys, width});
  rates.memory_bandwidth =
      3.0 * static_cast<double>(a.nbytes()) / least_seconds([&] { at::mul_out(out, a, b); });
  return rates;
}

}  // namespace cachedit::pipelines
