#include "attention/ffpa.h"

namespace cachedit::attention {

Backend make_ffpa_fp4_backend() {
  return make_ffpa_variant(
      {.name = "ffpa_fp4",
       .description = "FFPA in NVFP4; on CPUs it predicts that format's accuracy",
       .listing = 10,
       .scheme = kernels::AttentionScheme::kFp4,
       .compute_capabilities = {120}});
}

}  // namespace cachedit::attention
