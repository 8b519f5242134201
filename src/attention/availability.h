// Whether a kind of device, or an operator of another library, is there.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "attention/backend.h"

namespace cachedit::attention {

/// Backends that run wherever cachedit runs.
Availability always_available(at::Device device);

/// The linked LibTorch has CUDA, this machine the device, and the device one of the compute
/// capabilities (10 * major + minor; empty: any).
Availability cuda_availability(at::Device device, const std::vector<int>& compute_capabilities);

/// torch_npu's library is loaded and has the device.
Availability npu_availability(at::Device device);

/// For devices that a backend is specified for but has no kernel yet: no, with the hardware that
/// the kernel is specified for.
Availability no_cuda_kernel_yet(std::string_view hardware, std::string_view remedy);

/// 10 * major + minor, asked of NVIDIA's driver; none where there is no driver or no such device.
std::optional<int> compute_capability(at::Device device);

/// "sm_80, sm_90".
std::string sm_list(const std::vector<int>& compute_capabilities);

}  // namespace cachedit::attention
