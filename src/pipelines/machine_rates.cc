#include "pipelines/machine_rates.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/stopwatch.h"

namespace cachedit::pipelines {
namespace {

/// Of the fastest of several calls, since other processes only ever add to it.
double least_seconds(const std::function<void()>& call) {
  constexpr int kFewest = 3;
  constexpr double kEnoughSeconds = 0.2;
  call();  // packs weights, starts threads
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

MachineRates measure_rates(int64_t heads, int64_t head_dim, int64_t tokens, at::ScalarType dtype) {
  constexpr int64_t kMaxRows = 512, kMaxKeys = 2048, kMaxHeads = 4;
  const int64_t width = heads * head_dim;
  const int64_t rows = std::min(tokens, kMaxRows), keys = std::min(tokens, kMaxKeys);
  const auto ones = [&](at::IntArrayRef sizes) {
    return at::ones(sizes, at::TensorOptions().dtype(dtype));
  };
  MachineRates rates;

  const at::Tensor x = ones({rows, width}), weight = ones({4 * width, width});
  rates.gemm_flops = 2.0 * static_cast<double>(weight.numel() * rows) /
                     least_seconds([&] { at::linear(x, weight); });

  const at::Tensor heads_first = ones({1, std::min(heads, kMaxHeads), keys, head_dim});
  rates.attention_flops =
      4.0 * static_cast<double>(heads_first.numel() * keys) / least_seconds([&] {
        at::scaled_dot_product_attention(heads_first, heads_first, heads_first);
      });

  const at::Tensor a = ones({keys, width}), b = ones({keys, width});
  at::Tensor out = ones({keys, width});
  rates.memory_bandwidth =
      3.0 * static_cast<double>(a.nbytes()) / least_seconds([&] { at::mul_out(out, a, b); });
  return rates;
}

}  // namespace cachedit::pipelines
