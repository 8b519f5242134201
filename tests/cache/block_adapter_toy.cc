#include "cache/block_adapter_toy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tanh.h>

#include <utility>

namespace cachedit::test {
namespace {

nn::Streams both_streams(int64_t i, const at::Tensor& hidden, const at::Tensor& encoder) {
  const double scale = 1 + 0.3 * static_cast<double>(i);
  return {.hidden = hidden + 0.2 * at::tanh(scale * hidden + encoder.mean(1, true)),
          .encoder = encoder + 0.1 * at::tanh(encoder - hidden.mean(1, true))};
}

nn::Streams one_stream(int64_t i, const at::Tensor& hidden) {
  const double scale = 1 + 0.3 * static_cast<double>(i);
  const at::Tensor next = hidden + 0.2 * at::tanh(scale * hidden + 0.1);
  return {.hidden = next, .encoder = 0.5 * next.slice(1, 0, 2) - 0.1 * static_cast<double>(i)};
}

bool takes_encoder(int64_t pattern) { return pattern < 3; }

std::vector<at::Tensor> ordered(int64_t pattern, const nn::Streams& s) {
  if (pattern == 2 || pattern == 3) return {s.hidden};
  if (pattern == 0 || pattern == 4) return {s.hidden, s.encoder};
  return {s.encoder, s.hidden};
}

nn::Streams named(int64_t pattern, const std::vector<at::Tensor>& outputs, at::Tensor encoder) {
  if (pattern == 2 || pattern == 3) return {.hidden = outputs.at(0), .encoder = encoder};
  if (pattern == 0 || pattern == 4) return {.hidden = outputs.at(0), .encoder = outputs.at(1)};
  return {.hidden = outputs.at(1), .encoder = outputs.at(0)};
}

}  // namespace

BlockFunction toy_block(int64_t pattern, int64_t index, bool in_place) {
  return [=](const std::vector<at::Tensor>& inputs) {
    at::Tensor hidden = inputs.at(0);
    at::Tensor encoder = takes_encoder(pattern) ? inputs.at(1) : at::Tensor();
    nn::Streams next =
        takes_encoder(pattern) ? both_streams(index, hidden, encoder) : one_stream(index, hidden);
    if (in_place) {
      next.hidden = hidden.copy_(next.hidden);
      if (encoder.defined() && pattern != 2) next.encoder = encoder.copy_(next.encoder);
    }
    return ordered(pattern, next);
  };
}

AdaptedBlocks toy_list(int64_t pattern, bool in_place) {
  AdaptedBlocks list{.forward_pattern = static_cast<ForwardPattern>(pattern),
                     .writes_inputs = in_place};
  for (int64_t i = 0; i < kToyBlocks; ++i) {
    list.blocks.push_back(toy_block(pattern, i, in_place));
  }
  return list;
}

BlockAdapter toy_adapter(int64_t pattern, bool in_place) {
  return {.lists = {toy_list(pattern, in_place)}};
}

nn::Streams plain_forward(int64_t pattern, nn::Streams streams, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i) {
    const nn::Streams next = takes_encoder(pattern)
                                 ? both_streams(i, streams.hidden, streams.encoder)
                                 : one_stream(i, streams.hidden);
    streams = named(pattern, ordered(pattern, next), streams.encoder);
  }
  return streams;
}

nn::Streams cached_forward(CachedBlocks& cached, int64_t pattern, const nn::Streams& streams) {
  BlockInputs inputs{.hidden_states = streams.hidden};
  if (takes_encoder(pattern)) inputs.encoder_hidden_states = streams.encoder;
  return named(pattern, cached.forward(inputs), streams.encoder);
}

at::Tensor next_state(const at::Tensor& x, const at::Tensor& out, int64_t t) {
  const double move = t % 5 == 4 ? 0.08 : 0.02;
  return x + move * (0.5 * at::sin(3 * x + static_cast<double>(t)) - out);
}

nn::Streams denoise(const Forward& forward, nn::Streams start, bool separate_cfg, int64_t steps) {
  at::Tensor x = start.hidden;
  at::Tensor state;
  for (int64_t t = 0; t < steps; ++t) {
    // Clones, since blocks may write into what they get.
    nn::Streams result = forward({.hidden = x.clone(), .encoder = start.encoder.clone()});
    state = result.encoder;
    at::Tensor out = result.hidden;
    if (separate_cfg) {
      const at::Tensor negative = forward({.hidden = x.clone(), .encoder = -start.encoder}).hidden;
      out = negative + 1.5 * (out - negative);
    }
    x = next_state(x, out, t);
  }
  return {.hidden = x, .encoder = state};
}

nn::Streams toy_start(int64_t batch, int64_t tokens, uint64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return {.hidden = at::randn({batch, tokens, 8}, generator, at::kFloat),
          .encoder = 0.3 * at::randn({batch, 3, 8}, generator, at::kFloat)};
}

nn::Streams for_pattern(int64_t pattern, nn::Streams streams) {
  if (!takes_encoder(pattern)) streams.encoder = at::Tensor();
  return streams;
}

}  // namespace cachedit::test
