#include "attention/aten_helpers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

namespace cachedit::attention {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// [B, H, N, D] in fp32 with as many heads as the query.
at::Tensor as_float_heads(const at::Tensor& t, int64_t heads) {
  at::Tensor x = heads_first(t).to(at::kFloat);
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}

/// Queries [begin, end) of a [b|1, h|1, q|1, k] mask.
at::Tensor mask_rows(const at::Tensor& mask, int64_t begin, int64_t end) {
  return mask.size(2) == 1 ? mask : mask.slice(2, begin, end);
}

}  // namespace

at::Tensor heads_first(const at::Tensor& t) { return t.transpose(1, 2); }

at::Tensor with_dense_last_dim(const at::Tensor& t) {
  return t.stride(-1) == 1 || t.size(-1) == 1 ? t : t.contiguous();
}

at::Tensor additive_mask(const Inputs& in) {
  if (in.mask.scalar_type() != at::kBool) return in.mask;
  return at::zeros(in.mask.sizes(), in.query.options())
      .masked_fill_(in.mask.logical_not(), kMinusInfinity);
}

at::Tensor fully_masked_rows(const at::Tensor& mask) {
  const at::Tensor excluded =
      mask.scalar_type() == at::kBool ? mask.logical_not() : mask == kMinusInfinity;
  return excluded.all(-1);
}

void clear_fully_masked_rows(const Inputs& in, Result& result) {
  if (!in.mask.defined()) return;
  const at::Tensor rows = fully_masked_rows(in.mask);  // [b|1, h|1, q|1]
  result.out = result.out.masked_fill(rows.transpose(1, 2).unsqueeze(-1), 0);
  if (result.lse.defined()) result.lse = result.lse.masked_fill(rows, kMinusInfinity);
}

void clear_rows_before_first_key(const Inputs& in, Result& result) {
  const int64_t rows = in.query.size(1) - in.key.size(1);
  if (!in.is_causal || rows <= 0) return;
  result.out.narrow(1, 0, rows).zero_();
  if (result.lse.defined()) result.lse.narrow(2, 0, rows).fill_(kMinusInfinity);
}

Result attention_by_definition(const Inputs& in) {
  constexpr int64_t kBlock = 256;
  const int64_t queries = in.query.size(1), keys = in.key.size(1), heads = in.query.size(2);
  const at::Tensor query = heads_first(in.query);
  const at::Tensor key = as_float_heads(in.key, heads), value = as_float_heads(in.value, heads);
  const at::Tensor key_index = at::arange(keys, in.query.options().dtype(at::kLong));
  Result result{
      .out = at::empty(in.query.sizes(), in.query.options()),
      .lse = at::empty({in.query.size(0), heads, queries}, in.query.options().dtype(at::kFloat))};
  for (int64_t begin = 0; begin < queries; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, queries);
    at::Tensor logits =
        at::matmul(query.slice(2, begin, end).to(at::kFloat), key.transpose(2, 3)) * *in.scale;
    if (in.is_causal) {
      const at::Tensor rows = at::arange(begin, end, key_index.options()).unsqueeze(1);
      logits.masked_fill_(key_index > rows, kMinusInfinity);
    }
    if (in.mask.defined()) {
      const at::Tensor mask = mask_rows(in.mask, begin, end);
      logits = mask.scalar_type() == at::kBool
                   ? logits.masked_fill_(mask.logical_not(), kMinusInfinity)
                   : logits.add_(mask);
    }
    const at::Tensor lse = at::logsumexp(logits, -1, /*keepdim=*/true);
    // -inf - -inf would be NaN; exp(-inf - 0) is the zero of a row without keys.
    const at::Tensor shift = lse.masked_fill(lse == kMinusInfinity, 0);
    const at::Tensor out = at::matmul(at::exp(logits - shift), value);
    result.out.slice(1, begin, end).copy_(heads_first(out));
    result.lse.slice(2, begin, end).copy_(lse.squeeze(-1));
  }
  return result;
}

}  // namespace cachedit::attention
