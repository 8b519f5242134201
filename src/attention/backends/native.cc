#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "attention/aten_helpers.h"
#include "attention/availability.h"
#include "attention/backend.h"

namespace cachedit::attention {
namespace {

std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

Result without_lse(const Inputs& in) {
  Result result;
  result.out = heads_first(at::scaled_dot_product_attention(
      heads_first(in.query), heads_first(in.key), heads_first(in.value), optional(in.mask),
      /*dropout_p=*/0.0, in.is_causal, in.scale, in.enable_gqa));
  return result;
}

Result run_cpu(const Inputs& in) {
  if (!in.return_lse) return without_lse(in);
  // The operator behind scaled_dot_product_attention on a CPU. Called directly it reads a last
  // dimension that is not dense wrongly, takes no bool mask, and gives lse = 0 to masked rows.
  const auto heads = [](const at::Tensor& t) { return heads_first(with_dense_last_dim(t)); };
  const at::Tensor mask = in.mask.defined() ? additive_mask(in) : at::Tensor();
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      heads(in.query), heads(in.key), heads(in.value), /*dropout_p=*/0.0, in.is_causal,
      optional(mask), in.scale);
  Result result{.out = heads_first(out), .lse = lse.to(at::kFloat).contiguous()};
  clear_fully_masked_rows(in, result);
  return result;
}

/// Memory-efficient attention gives the log-sum-exp of any dtype; its masks need an alignment that
/// ours need not have, and its kernels as many key heads as query heads.
bool fits_efficient_kernel(const Inputs& in) {
  const int64_t alignment = in.query.scalar_type() == at::kFloat ? 4 : 8;
  return !in.mask.defined() && in.query.size(2) == in.key.size(2) &&
         in.query.size(3) % alignment == 0 && in.query.scalar_type() != at::kDouble;
}

Result run_cuda(const Inputs& in) {
  if (in.return_lse && !fits_efficient_kernel(in)) return attention_by_definition(in);
  Result result;
  if (in.return_lse) {
    const auto heads = [](const at::Tensor& t) { return heads_first(with_dense_last_dim(t)); };
    auto out = at::_scaled_dot_product_efficient_attention(
        heads(in.query), heads(in.key), heads(in.value), /*attn_bias=*/std::nullopt,
        /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, in.is_causal, in.scale);
    result.out = heads_first(std::get<0>(out));
    // Its rows are padded to a multiple of 32.
    result.lse = std::get<1>(out).narrow(2, 0, in.query.size(1)).contiguous();
    return result;
  }
  result = without_lse(in);
  clear_fully_masked_rows(in, result);
  return result;
}

Result run_npu(const Inputs& in) {
  if (in.return_lse) return attention_by_definition(in);
  Result result = without_lse(in);
  clear_fully_masked_rows(in, result);
  return result;
}

Capabilities capabilities() {
  return {.dtypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble},
          .max_head_dim = 65536,
          .causal = true,
          .causal_alignment = CausalAlignment::kFirst,
          .mask = true,
          .mask_under_context_parallelism = true,
          .gqa = true,
          .lse = true};
}

}  // namespace

Backend make_native_backend() {
  Backend backend{
      .name = "native", .description = "ATen's scaled_dot_product_attention", .listing = 1};
  backend.devices = {
      {.device = at::kCPU,
       .can = capabilities(),
       .availability = always_available,
       .run = run_cpu,
       .auto_rank = 3},
      {.device = at::kCUDA,
       .can = capabilities(),
       .availability = [](at::Device device) { return cuda_availability(device, {}); },
       .run = run_cuda,
       .auto_rank = 3},
      {.device = at::kPrivateUse1,
       .can = capabilities(),
       .availability = npu_availability,
       .run = run_npu,
       .auto_rank = 2}};
  return backend;
}

}  // namespace cachedit::attention
