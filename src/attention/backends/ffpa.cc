#include "attention/ffpa.h"

namespace cachedit::attention {

Backend make_ffpa_backend() {
  return make_ffpa_variant({.name = "ffpa",
                            .description = "FFPA: exact attention for large heads, with masks",
                            .listing = 7,
                            .scheme = kernels::AttentionScheme::kExact,
                            .compute_capabilities = {89, 120}});
}

}  // namespace cachedit::attention
