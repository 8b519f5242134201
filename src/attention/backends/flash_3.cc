#include "attention/aten_helpers.h"
#include "attention/availability.h"
#include "attention/dispatch.h"

namespace cachedit::attention {
namespace {

constexpr const char* kOperator = "flash_attn_3::fwd";

Result run(const Inputs& in) {
  const std::vector<c10::IValue> out =
      call_operator({.where = "attention _flash_3",
                     .name = kOperator,
                     .arguments = {{"q", with_dense_last_dim(in.query)},
                                   {"k", with_dense_last_dim(in.key)},
                                   {"v", with_dense_last_dim(in.value)},
                                   {"softmax_scale", *in.scale},
                                   {"is_causal", in.is_causal},
                                   // As its Python interface does: more splits of the keys than one
                                   // would make results depend on the number of multiprocessors.
                                   {"num_splits", int64_t{1}}}});
  Result result{.out = out.at(0).toTensor()};
  if (in.return_lse) result.lse = out.at(1).toTensor();
  clear_rows_before_first_key(in, result);
  return result;
}

Availability availability(at::Device device) {
  Availability cuda = cuda_availability(device, {90});
  if (!cuda.available || has_operator(kOperator)) return cuda;
  return {.available = false,
          .reason = "FlashAttention-3's library is not loaded (no operator flash_attn_3::fwd)",
          .remedy =
              "build it (flash-attention's folder hopper) and give its .so file with "
              "--op-library or CACHEDIT_OP_LIBRARIES"};
}

}  // namespace

Backend make_flash_3_backend() {
  Backend backend{.name = "_flash_3",
                  .description = "the official FlashAttention-3 library, for Hopper",
                  .listing = 5};
  backend.devices = {{.device = at::kCUDA,
                      .can = {.dtypes = {at::kBFloat16, at::kHalf},
                              .min_head_dim = 8,
                              .max_head_dim = 256,
                              .head_dim_multiple = 8,
                              .causal = true,
                              .causal_alignment = CausalAlignment::kLast,
                              .lse = true,
                              .compute_capabilities = {90}},
                      .availability = availability,
                      .run = run,
                      .auto_rank = 1}};
  return backend;
}

}  // namespace cachedit::attention
