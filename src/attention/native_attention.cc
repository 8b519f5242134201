#include <ATen/ops/scaled_dot_product_attention.h>

#include "attention/attention.h"
#include "base/fail.h"

namespace cachedit::attention {
namespace {

constexpr const char* kWhere = "attention native";

void check(const Inputs& in) {
  for (const at::Tensor* t : {&in.query, &in.key, &in.value}) {
    if (!t->defined() || t->dim() != 4) {
      fail<InputError>(kWhere, "query, key and value must be [B, N, H, D]: got rank ",
                       t->defined() ? t->dim() : 0);
    }
  }
  if (in.key.sizes() != in.value.sizes() || in.query.size(0) != in.key.size(0) ||
      in.query.size(2) != in.key.size(2) || in.query.size(3) != in.key.size(3)) {
    fail<InputError>(kWhere, "batch, heads and head size must agree: got query ", in.query.sizes(),
                     ", key ", in.key.sizes(), ", value ", in.value.sizes());
  }
  if (in.mask.defined() && in.is_causal) {
    fail<InputError>(kWhere, "a mask and is_causal exclude each other: give one of them");
  }
}

}  // namespace

Result NativeAttention::operator()(const Inputs& in) const {
  check(in);
  std::optional<at::Tensor> mask;
  if (in.mask.defined()) mask = in.mask;
  const at::Tensor out = at::scaled_dot_product_attention(
      in.query.transpose(1, 2), in.key.transpose(1, 2), in.value.transpose(1, 2), mask,
      /*dropout_p=*/0.0, in.is_causal, in.scale);
  return {.out = out.transpose(1, 2), .lse = {}};
}

}  // namespace cachedit::attention
