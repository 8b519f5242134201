#include "attention/cudnn.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>

#include "attention/aten_helpers.h"
#include "attention/availability.h"

namespace cachedit::attention {

Result run_cudnn(const Inputs& in) {
  const auto heads = [](const at::Tensor& t) { return heads_first(with_dense_last_dim(t)); };
  std::optional<at::Tensor> bias;
  if (in.mask.defined()) bias = additive_mask(in);
  const auto out = at::_scaled_dot_product_cudnn_attention(
      heads(in.query), heads(in.key), heads(in.value), bias, in.return_lse, /*dropout_p=*/0.0,
      in.is_causal, /*return_debug_mask=*/false, in.scale);
  Result result{.out = heads_first(std::get<0>(out))};
  if (in.return_lse) {
    // [B, H, Nq, 1], or without the last dimension, by LibTorch's version.
    result.lse = std::get<1>(out).reshape({in.query.size(0), in.query.size(2), in.query.size(1)});
  }
  clear_fully_masked_rows(in, result);
  return result;
}

Capabilities cudnn_capabilities() {
  return {.dtypes = {at::kBFloat16, at::kHalf},
          .min_head_dim = 8,
          .max_head_dim = 128,
          .head_dim_multiple = 8,
          .causal = true,
          .causal_alignment = CausalAlignment::kFirst,
          .gqa = true,
          .compute_capabilities = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121}};
}

Availability cudnn_availability(at::Device device) {
  Availability cuda = cuda_availability(device, cudnn_capabilities().compute_capabilities);
  if (!cuda.available || at::globalContext().hasCuDNN()) return cuda;
  return {.available = false,
          .reason = "the linked LibTorch was built without cuDNN",
          .remedy = "link a CUDA build of LibTorch that has it"};
}

}  // namespace cachedit::attention
