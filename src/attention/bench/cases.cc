#include "attention/bench/cases.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/fail.h"

namespace cachedit::attention::bench {
namespace {

// The numbers of heads and tokens of the last head dimensions are chosen so that one call of SDPA
// takes a third of a second to a second on two cores with AVX-512.
constexpr Case kCases[] = {
    {"flux_512", "FLUX.1 at 512 x 512", 1536, 24, 128},
    {"flux_1024", "FLUX.1 at 1024 x 1024", 4608, 24, 128},
    {"flux_1024_mask", "the same with its last 128 keys masked", 4608, 24, 128, 128},
    {"wan", "a short video of Wan 2.1's smaller size", 8192, 12, 128},
    {"d64", "head dimension 64", 4096, 24, 64},
    {"d192", "head dimension 192", 2048, 24, 192},
    {"d256", "head dimension 256", 2048, 24, 256},
    {"d512", "head dimension 512", 2048, 8, 512},
    {"tokens_16384", "few heads and many tokens: scratch memory", 16384, 2, 128},
    {"tiny", "to see that everything works, not to measure", 160, 2, 64, 0, false},
    {"tiny_mask", "the same with its last 32 keys masked", 160, 2, 64, 32, false},
};

constexpr uint64_t kSeed = 20241117;

at::Tensor sample_indices(int64_t size, int64_t count) {
  count = std::min(size, count);
  // The middle of each of `count` equal parts, so that no row at either end is over-represented.
  const double part = static_cast<double>(size) / static_cast<double>(count);
  return at::arange(count, at::kDouble).add(0.5).mul(part).to(at::kLong);
}

/// [1, N, H, D] -> [heads, rows, D] in fp64.
at::Tensor take(const at::Tensor& tensor, const at::Tensor& rows, const at::Tensor& heads) {
  return tensor.select(0, 0).index_select(0, rows).index_select(1, heads).transpose(0, 1).to(
      at::kDouble);
}

}  // namespace

std::span<const Case> all_cases() { return kCases; }

const Case& find_case(std::string_view name) {
  std::string names;
  for (const Case& c : kCases) {
    if (c.name == name) return c;
    names += (names.empty() ? "" : ", ") + std::string(c.name);
  }
  fail<InputError>("bench attention", "unknown case: got '", name, "'; there are ", names);
}

Inputs make_inputs(const Case& c, at::ScalarType dtype) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto normal = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kFloat);
  };
  const at::Tensor query = normal({1, c.tokens, c.heads, c.head_dim});
  at::Tensor key = normal({1, c.tokens, c.heads, c.head_dim});
  const at::Tensor value = normal({1, c.tokens, c.heads, c.head_dim});
  constexpr int64_t kOutlierEvery = 32;
  constexpr double kOutlier = 8;
  at::Tensor offset = normal({1, 1, c.heads, c.head_dim});
  offset.slice(3, 0, std::nullopt, kOutlierEvery).mul_(kOutlier);
  key.add_(offset);
  Inputs inputs{.query = query.to(dtype), .key = key.to(dtype), .value = value.to(dtype)};
  if (c.masked_keys > 0) {
    inputs.mask = at::ones({1, 1, 1, c.tokens}, at::kBool);
    inputs.mask.slice(3, c.tokens - c.masked_keys).fill_(false);
  }
  return inputs;
}

Reference::Reference(const Inputs& in)
    : rows_(sample_indices(in.query.size(1), 64)), heads_(sample_indices(in.query.size(2), 2)) {
  const at::Tensor all_keys = at::arange(in.key.size(1), at::kLong);
  const at::Tensor query = take(in.query, rows_, heads_);
  const at::Tensor key = take(in.key, all_keys, heads_);
  const at::Tensor value = take(in.value, all_keys, heads_);
  const double scale = in.scale.value_or(1 / std::sqrt(static_cast<double>(in.query.size(3))));
  at::Tensor logits = at::matmul(query, key.transpose(1, 2)).mul_(scale);
  if (in.mask.defined()) {
    // [1, 1, 1, keys] -> [1, 1, keys]
    logits.masked_fill_(in.mask.select(0, 0).logical_not(),
                        -std::numeric_limits<double>::infinity());
  }
  expected_ = at::matmul(at::softmax(logits, -1), value);
}

Accuracy Reference::judge(const at::Tensor& out) const {
  const at::Tensor got = take(out, rows_, heads_);
  const double dot = (got * expected_).sum().item<double>();
  const double lengths = got.norm().item<double>() * expected_.norm().item<double>();
  const double error = (got - expected_).abs().sum().item<double>();
  return {.cosine = dot / lengths, .rel_l1 = error / expected_.abs().sum().item<double>()};
}

}  // namespace cachedit::attention::bench
