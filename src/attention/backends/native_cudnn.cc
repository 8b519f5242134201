#include "attention/cudnn.h"

namespace cachedit::attention {

Backend make_native_cudnn_backend() {
  Backend backend{.name = "_native_cudnn",
                  .description = "cuDNN's attention through ATen, without masks",
                  .listing = 3};
  backend.devices = {{.device = at::kCUDA,
                      .can = cudnn_capabilities(),
                      .availability = cudnn_availability,
                      .run = run_cudnn}};
  return backend;
}

}  // namespace cachedit::attention
