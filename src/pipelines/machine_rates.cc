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

std::unique_ptr<nn::LinearForm> form_of(const RatedWork& work, const at::Tensor& weight) {
  const nn::LinearWeight plain{.values = weight};
  if (work.type) return nn::make_quantized_form({plain}, {}, *work.type, work.group_size);
  return nn::has_packed_form(at::kCPU, work.dtype) ? nn::make_packed_form({plain}, {}, work.dtype)
                                                   : nn::make_aten_form(weight, {});
}

}  // namespace

MachineRates measure_rates(const RatedWork& work, const attention::Attention& attention) {
  constexpr int64_t kMaxRows = 512, kMaxKeys = 2048, kMaxHeads = 4;
  const int64_t width = work.heads * work.head_dim;
  const int64_t rows = std::min(work.tokens, kMaxRows), keys = std::min(work.tokens, kMaxKeys);
  const auto ones = [&](at::IntArrayRef sizes) {
    return at::ones(sizes, at::TensorOptions().dtype(work.dtype));
  };
  MachineRates rates;

  const at::Tensor weight = ones({4 * width, width}), x = ones({1, rows, width});
  const std::unique_ptr<nn::LinearForm> layer = form_of(work, weight);
  const nn::LinearCall product{.input = x, .out = ones({1, rows, 4 * width})};
  rates.gemm_flops = 2.0 * static_cast<double>(weight.numel() * rows) /
                     least_seconds([&] { layer->run(product); });

  const at::Tensor tokens_first = ones({1, keys, std::min(work.heads, kMaxHeads), work.head_dim});
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
