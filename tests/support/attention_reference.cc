#include "support/attention_reference.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace cachedit::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// [B, N, Hkv, D] as [B, H, N, D].
at::Tensor heads_first(const at::Tensor& t, int64_t heads) {
  return t.repeat_interleave(heads / t.size(2), 2).transpose(1, 2);
}

/// [1, 1, Nq, Nkv], true where the causal rule lets the query see the key.
at::Tensor causal_mask(const AttentionInputs& in) {
  const at::Tensor query = at::arange(in.query.size(1)).view({1, 1, -1, 1});
  const at::Tensor key = at::arange(in.key.size(1)).view({1, 1, 1, -1});
  return key <= query + in.causal_offset;
}

at::Generator generator(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

}  // namespace

double AttentionInputs::effective_scale() const {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3))));
}

AttentionOutputs reference_attention(const AttentionInputs& in) {
  const int64_t heads = in.query.size(2);
  const at::Tensor query = heads_first(in.query.to(at::kDouble), heads);
  if (in.key.size(1) == 0) {
    return {.out = at::zeros(in.query.sizes(), at::kDouble),
            .lse = at::full({query.size(0), heads, query.size(2)}, -kInfinity, at::kDouble)};
  }
  const at::Tensor key = heads_first(in.key.to(at::kDouble), heads);
  const at::Tensor value = heads_first(in.value.to(at::kDouble), heads);
  at::Tensor logits = at::matmul(query, key.transpose(2, 3)) * in.effective_scale();
  if (in.mask.defined() && in.mask.scalar_type() == at::kBool) {
    logits = logits.masked_fill(in.mask.logical_not(), -kInfinity);
  } else if (in.mask.defined()) {
    logits = logits + in.mask.to(at::kDouble);
  }
  if (in.causal) logits = logits.masked_fill(causal_mask(in).logical_not(), -kInfinity);

  const at::Tensor highest = at::amax(logits, -1, /*keepdim=*/true);
  const at::Tensor empty_row = highest == -kInfinity;
  at::Tensor weights = (logits - highest).exp().masked_fill(empty_row, 0);
  const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  weights = (weights / sum).masked_fill(empty_row, 0);
  return {.out = at::matmul(weights, value).transpose(1, 2),
          .lse = (highest + sum.log()).squeeze(-1)};
}

at::Tensor aten_attention(const AttentionInputs& in) {
  const int64_t heads = in.query.size(2);
  std::optional<at::Tensor> mask;
  if (in.mask.defined()) mask = in.mask;
  if (in.causal) mask = causal_mask(in);
  return at::scaled_dot_product_attention(in.query.transpose(1, 2), heads_first(in.key, heads),
                                          heads_first(in.value, heads), mask, /*dropout_p=*/0.0,
                                          /*is_causal=*/false, in.effective_scale())
      .transpose(1, 2);
}

at::Tensor seeded_normal(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  return at::randn(shape, generator(seed), at::kFloat).to(dtype);
}

at::Tensor seeded_bool(at::IntArrayRef shape, double probability, uint64_t seed) {
  return at::rand(shape, generator(seed), at::kFloat) < probability;
}

AttentionInputs random_attention_inputs(const AttentionShape& shape, at::ScalarType dtype,
                                        uint64_t seed) {
  const std::vector<int64_t> kv = {shape.batch, shape.keys, shape.kv_heads, shape.head_dim};
  return {.query = seeded_normal({shape.batch, shape.queries, shape.heads, shape.head_dim}, dtype,
                                 3 * seed),
          .key = seeded_normal(kv, dtype, 3 * seed + 1),
          .value = seeded_normal(kv, dtype, 3 * seed + 2)};
}

at::Tensor with_channel_outliers(const at::Tensor& key, double magnitude) {
  const int64_t heads = key.size(2), head_dim = key.size(3);
  at::Tensor offset = at::zeros({1, 1, heads, head_dim}, at::kFloat);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t channel = (5 + 3 * head) % std::min<int64_t>(head_dim, 32); channel < head_dim;
         channel += 32) {
      offset[0][0][head][channel] = (channel / 32 + head) % 2 == 0 ? magnitude : -magnitude;
    }
  }
  return (key.to(at::kFloat) + offset).to(key.scalar_type());
}

at::Tensor in_layout(const at::Tensor& tensor, Layout layout) {
  const int64_t batch = tensor.size(0), tokens = tensor.size(1), heads = tensor.size(2),
                head_dim = tensor.size(3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor view;
  switch (layout) {
    case Layout::kContiguous:
      return tensor.contiguous();
    case Layout::kFusedQkv:
      view = at::full({batch, tokens, 3, heads, head_dim}, nan, tensor.options()).select(2, 1);
      break;
    case Layout::kHeadsFirst:
      view = at::full({batch, heads, tokens, head_dim}, nan, tensor.options()).transpose(1, 2);
      break;
    case Layout::kPadded:
      view = at::full({batch, tokens, heads, head_dim + 3}, nan, tensor.options())
                 .narrow(3, 0, head_dim);
      break;
  }
  view.copy_(tensor);
  return view;
}

AttentionInputs in_layout(AttentionInputs inputs, Layout layout) {
  for (at::Tensor* t : {&inputs.query, &inputs.key, &inputs.value}) *t = in_layout(*t, layout);
  return inputs;
}

}  // namespace cachedit::test
