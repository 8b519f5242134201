#include "attention/ffpa.h"

namespace cachedit::attention {

Backend make_ffpa_fp8_per_block_backend() {
  return make_ffpa_variant(
      {.name = "ffpa_fp8_per_block",
       .description = "FFPA with INT8 QK and e4m3 PV, one scale per block: the least precise",
       .listing = 9,
       .scheme = kernels::AttentionScheme::kFp8PerBlock,
       .compute_capabilities = {89, 120},
       .cuda_note = ffpa_fp8_cuda_note()});
}

}  // namespace cachedit::attention
