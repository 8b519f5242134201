#include <ATen/ops/_flash_attention_forward.h>

#include "attention/aten_helpers.h"
#include "attention/availability.h"
#include "attention/cpu_kernels.h"

namespace cachedit::attention {
namespace {

Capabilities capabilities(std::vector<at::ScalarType> dtypes) {
  return {.dtypes = std::move(dtypes),
          .max_head_dim = 256,
          .causal = true,
          .causal_alignment = CausalAlignment::kLast,
          .lse = true};
}

/// FlashAttention-2, which LibTorch carries. Takes [B, N, H, D] as it is.
Result run_cuda(const Inputs& in) {
  const auto out = at::_flash_attention_forward(
      with_dense_last_dim(in.query), with_dense_last_dim(in.key), with_dense_last_dim(in.value),
      /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt, in.query.size(1), in.key.size(1),
      /*dropout_p=*/0.0, in.is_causal, /*return_debug_mask=*/false, in.scale);
  Result result{.out = std::get<0>(out)};
  if (in.return_lse) result.lse = std::get<1>(out);
  // Its lse is +inf there.
  clear_rows_before_first_key(in, result);
  return result;
}

}  // namespace

Backend make_flash_backend() {
  Backend backend{
      .name = "flash",
      .description = "FlashAttention-2: cachedit's tiled kernel on CPUs, ATen's on CUDA",
      .listing = 4};
  Capabilities cuda = capabilities({at::kBFloat16, at::kHalf});
  cuda.min_head_dim = cuda.head_dim_multiple = 8;
  cuda.compute_capabilities = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121};
  backend.devices = {
      {.device = at::kCPU,
       .can = capabilities({at::kFloat, at::kBFloat16, at::kHalf}),
       .availability = always_available,
       .run =
           [](const Inputs& in) {
             return run_cpu_kernel(kernels::AttentionScheme::kExact, CausalAlignment::kLast, in);
           },
       .auto_rank = 1},
      {.device = at::kCUDA,
       .can = cuda,
       .availability = [wanted = cuda.compute_capabilities](
                           at::Device device) { return cuda_availability(device, wanted); },
       .run = run_cuda,
       .auto_rank = 2}};
  return backend;
}

}  // namespace cachedit::attention
