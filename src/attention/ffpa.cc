#include "attention/ffpa.h"

#include "attention/availability.h"
#include "attention/cpu_kernels.h"

namespace cachedit::attention {
namespace {

Capabilities capabilities(std::vector<at::ScalarType> dtypes) {
  return {.dtypes = std::move(dtypes),
          .max_head_dim = 1024,
          .causal = true,
          .causal_alignment = CausalAlignment::kLast,
          .mask = true,
          .fp32_mask = true,
          .gqa = true,
          .lse = true};
}

}  // namespace

std::string ffpa_fp8_cuda_note() {
  return "on CUDA, upstream's fp8 kernels give wrong results at head dim 192: take ffpa or "
         "ffpa_fp4 "
         "there (the CPU kernels are right); on sm_89 they are compiled for head dims 64, 128 and "
         "192";
}

Backend make_ffpa_variant(const FfpaVariant& variant) {
  Backend backend{
      .name = variant.name, .description = variant.description, .listing = variant.listing};
  DeviceSupport cpu{.device = at::kCPU,
                    .can = capabilities({at::kFloat, at::kBFloat16, at::kHalf}),
                    .availability = always_available,
                    .run = [scheme = variant.scheme](const Inputs& in) {
                      return run_cpu_kernel(scheme, CausalAlignment::kLast, in);
                    }};
  if (variant.scheme == kernels::AttentionScheme::kExact) cpu.auto_rank = 2;
  DeviceSupport cuda{.device = at::kCUDA, .can = capabilities({at::kBFloat16, at::kHalf})};
  cuda.can.compute_capabilities = variant.compute_capabilities;
  cuda.note = variant.cuda_note;
  const std::string hardware = sm_list(variant.compute_capabilities) +
                               (variant.compute_capabilities.size() == 1 ? " only" : "") +
                               ", not for sm_90 and sm_100";
  const std::string remedy = "run on the CPU, or take flash or native on this device" +
                             (variant.cuda_note.empty() ? "" : "; note: " + variant.cuda_note);
  cuda.availability = [hardware, remedy](at::Device) {
    return no_cuda_kernel_yet(hardware, remedy);
  };
  backend.devices = {std::move(cpu), std::move(cuda)};
  return backend;
}

}  // namespace cachedit::attention
