#include "attention/availability.h"
#include "attention/cpu_kernels.h"

namespace cachedit::attention {
namespace {

Capabilities capabilities(std::vector<at::ScalarType> dtypes) {
  return {.dtypes = std::move(dtypes),
          .max_head_dim = 128,
          .causal = true,
          .causal_alignment = CausalAlignment::kEqualOnly,
          .gqa = true,
          .lse = true};
}

}  // namespace

Backend make_sage_backend() {
  Backend backend{.name = "sage",
                  .description = "SageAttention 2: INT8 products with smoothed keys",
                  .listing = 6};
  Capabilities cuda = capabilities({at::kBFloat16, at::kHalf});
  cuda.compute_capabilities = {80, 86, 89, 90, 120};
  backend.devices = {{.device = at::kCPU,
                      .can = capabilities({at::kFloat, at::kBFloat16, at::kHalf}),
                      .availability = always_available,
                      .run =
                          [](const Inputs& in) {
                            return run_cpu_kernel(kernels::AttentionScheme::kSage,
                                                  CausalAlignment::kEqualOnly, in);
                          }},
                     {.device = at::kCUDA,
                      .can = cuda,
                      .availability = [hardware = sm_list(cuda.compute_capabilities)](at::Device) {
                        return no_cuda_kernel_yet(hardware,
                                                  "run on the CPU, or take flash on this device");
                      }}};
  return backend;
}

}  // namespace cachedit::attention
