#include "attention/ffpa.h"

namespace cachedit::attention {

Backend make_ffpa_fp8_backend() {
  return make_ffpa_variant(
      {.name = "ffpa_fp8",
       .description = "FFPA with INT8 QK and e4m3 PV, scales per token and channel",
       .listing = 8,
       .scheme = kernels::AttentionScheme::kFp8,
       .compute_capabilities = {89, 120},
       .cuda_note = ffpa_fp8_cuda_note()});
}

}  // namespace cachedit::attention
