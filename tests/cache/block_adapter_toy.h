// A toy transformer of every ForwardPattern and a denoising loop over it; the same arithmetic as
// tests/goldens/make_block_adapter.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "cachedit/block_adapter.h"
#include "nn/streams.h"

namespace cachedit::test {

constexpr int64_t kToyBlocks = 5;
constexpr int64_t kToySteps = 14;

/// Block `index` of a pattern. `in_place`: writes its results into its inputs, and returns those.
BlockFunction toy_block(int64_t pattern, int64_t index, bool in_place = false);

AdaptedBlocks toy_list(int64_t pattern, bool in_place = false);

BlockAdapter toy_adapter(int64_t pattern, bool in_place = false);

/// The streams after all blocks, by a plain loop.
nn::Streams plain_forward(int64_t pattern, nn::Streams streams, int64_t blocks = kToyBlocks);

/// One pass over list 0, outputs told apart by the pattern.
nn::Streams cached_forward(CachedBlocks& cached, int64_t pattern, const nn::Streams& streams);

using Forward = std::function<nn::Streams(const nn::Streams&)>;

/// Moves that shrink and grow, so that steps fall on both sides of a threshold. The last state, and
/// the last encoder output.
nn::Streams denoise(const Forward& forward, nn::Streams start, bool separate_cfg = false,
                    int64_t steps = kToySteps);

/// The x of step t + 1, given what the transformer made of the x of step t.
at::Tensor next_state(const at::Tensor& x, const at::Tensor& out, int64_t t);

/// Seeded [batch, tokens, 8] and [batch, 3, 8].
nn::Streams toy_start(int64_t batch = 2, int64_t tokens = 6, uint64_t seed = 1);

/// Of patterns that take no encoder states: without them.
nn::Streams for_pattern(int64_t pattern, nn::Streams streams);

}  // namespace cachedit::test
