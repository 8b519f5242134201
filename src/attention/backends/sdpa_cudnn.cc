#include "attention/cudnn.h"

namespace cachedit::attention {

Backend make_sdpa_cudnn_backend() {
  Capabilities can = cudnn_capabilities();
  can.mask = true;
  can.mask_under_context_parallelism = true;
  can.lse = true;
  Backend backend{.name = "_sdpa_cudnn",
                  .description = "cuDNN's attention through ATen, with masks and log-sum-exp",
                  .listing = 2};
  backend.devices = {{.device = at::kCUDA,
                      .can = std::move(can),
                      .availability = cudnn_availability,
                      .run = run_cudnn}};
  return backend;
}

}  // namespace cachedit::attention
