// Block caching for a transformer of your own: eight toy blocks in plain ATen calls denoise with
// every block computed, then with caching. Prints what caching did.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "cachedit/block_adapter.h"

namespace {

constexpr int64_t kTokens = 256;
constexpr int64_t kWidth = 256;
constexpr int64_t kSteps = 20;

/// Attention and a two-layer network over tokens [1, N, C]; `time` [1] scales what they add.
struct Block {
  at::Tensor qkv = at::randn({kWidth, 3 * kWidth}) / 16;
  at::Tensor up = at::randn({kWidth, 4 * kWidth}) / 16;
  at::Tensor down = at::randn({4 * kWidth, kWidth}) / 32;

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) const {
    const at::Tensor &x = inputs[0], &time = inputs[1];
    const auto heads = at::layer_norm(x, {kWidth}).matmul(qkv).view({1, kTokens, 3, 4, kWidth / 4});
    const at::Tensor q = heads.select(2, 0).transpose(1, 2);
    const at::Tensor k = heads.select(2, 1).transpose(1, 2);
    const at::Tensor v = heads.select(2, 2).transpose(1, 2);
    const at::Tensor attended = at::scaled_dot_product_attention(q, k, v).transpose(1, 2);
    const at::Tensor y = x + time * attended.reshape(x.sizes());
    return {y + time * at::gelu(at::layer_norm(y, {kWidth}).matmul(up)).matmul(down)};
  }
};

/// The denoising loop; the time of the step goes to every block as an extra input.
at::Tensor denoise(cachedit::CachedBlocks& transformer, at::Tensor x) {
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor time = at::full({1}, 0.2 - 0.1 * static_cast<double>(step) / kSteps);
    const at::Tensor predicted = transformer.forward(
        {.hidden_states = x, .extra = {time}, .step = {{.step = step, .num_steps = kSteps}}})[0];
    x = x - (predicted - x) / kSteps;
  }
  return x;
}

}  // namespace

int main() try {
  // ForwardPattern 3: a block takes and returns hidden_states.
  cachedit::AdaptedBlocks list{.name = "blocks",
                               .forward_pattern = cachedit::ForwardPattern::kPattern3,
                               .writes_inputs = false};
  for (int64_t i = 0; i < 8; ++i) list.blocks.emplace_back(Block());
  const cachedit::DBCacheConfig config{.Fn_compute_blocks = 1,
                                       .residual_diff_threshold = 0.2,
                                       .max_warmup_steps = 4,
                                       .max_continuous_cached_steps = 3};
  cachedit::CachedBlocks transformer = cachedit::enable_cache(
      {.lists = {list}}, {.cache_config = config, .calibrator_config = {{.taylorseer_order = 1}}});

  const at::Tensor noise = at::randn({1, kTokens, kWidth});
  transformer.disable();
  const at::Tensor plain = denoise(transformer, noise);
  transformer.enable();
  const at::Tensor cached = denoise(transformer, noise);

  for (const cachedit::CacheStats& stats : transformer.summary()) {
    std::printf("%s, %s: %zu of %ld steps cached:", stats.name.c_str(), stats.config.c_str(),
                stats.conditional.cached_steps.size(), static_cast<long>(stats.executed_steps));
    for (const int64_t step : stats.conditional.cached_steps) std::printf(" %ld", long{step});
    std::printf("\nbuffers: %.1f MiB at most\n",
                static_cast<double>(stats.peak_buffer_bytes) / (1 << 20));
  }
  std::printf("relative difference of the results: %.1e\n",
              ((cached - plain).norm() / plain.norm()).item<double>());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
