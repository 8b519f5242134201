#include "attention/availability.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include <algorithm>

#include "attention/capability.h"
#include "attention/op_library.h"

namespace cachedit::attention {
namespace {

constexpr const char* kUseCpu = "run on the CPU, or choose a backend for this device";

/// A device without an index is the first one.
int index_of(at::Device device) { return device.has_index() ? device.index() : 0; }

/// NVIDIA's driver library. LibTorch tells a compute capability only to programs built against
/// CUDA's headers; the driver tells everybody.
class Driver {
 public:
  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
    get_ = reinterpret_cast<int (*)(int*, int)>(dlsym(library, "cuDeviceGet"));
    attribute_ = reinterpret_cast<int (*)(int*, int, int)>(dlsym(library, "cuDeviceGetAttribute"));
    usable_ = init != nullptr && get_ != nullptr && attribute_ != nullptr && init(0) == 0;
  }

  std::optional<int> compute_capability(int index) const {
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
    int handle = 0, major = 0, minor = 0;
    if (!usable_ || get_(&handle, index) != 0 || attribute_(&major, kMajor, handle) != 0 ||
        attribute_(&minor, kMinor, handle) != 0) {
      return std::nullopt;
    }
    return 10 * major + minor;
  }

 private:
  int (*get_)(int*, int) = nullptr;
  int (*attribute_)(int*, int, int) = nullptr;
  bool usable_ = false;
};

}  // namespace

Availability always_available(at::Device /*device*/) { return {}; }

std::optional<int> compute_capability(at::Device device) {
  static const Driver driver;
  return driver.compute_capability(index_of(device));
}

std::string sm_list(const std::vector<int>& compute_capabilities) {
  std::string text;
  for (const int capability : compute_capabilities) {
    text += c10::str(text.empty() ? "" : ", ", "sm_", capability);
  }
  return text;
}

Availability cuda_availability(at::Device device, const std::vector<int>& compute_capabilities) {
  if (!at::hasCUDA()) {
    return {.available = false,
            .reason = "the linked LibTorch has no CUDA, or this machine no CUDA device",
            .remedy = "link a CUDA build of LibTorch on a machine with such a device"};
  }
  const int count = at::detail::getCUDAHooks().deviceCount();
  if (index_of(device) >= count) {
    return {.available = false,
            .reason = c10::str("this machine has ", count, " CUDA device(s): got ", device.str()),
            .remedy = "choose one that is there"};
  }
  if (compute_capabilities.empty()) return {};
  const std::optional<int> capability = compute_capability(device);
  if (capability && std::find(compute_capabilities.begin(), compute_capabilities.end(),
                              *capability) != compute_capabilities.end()) {
    return {};
  }
  return {.available = false,
          .reason = c10::str(
              "it runs on ", sm_list(compute_capabilities), ": this device is ",
              capability ? c10::str("sm_", *capability) : std::string("of unknown capability")),
          .remedy = kUseCpu};
}

Availability npu_availability(at::Device device) {
  load_environment_op_libraries();
  const bool present = at::isPrivateUse1HooksRegistered() &&
                       at::detail::getPrivateUse1Hooks().isAvailable() &&
                       at::detail::getPrivateUse1Hooks().deviceCount() > index_of(device);
  if (present) return {};
  return {.available = false,
          .reason = "there is no NPU, or torch_npu's library is not loaded",
          .remedy =
              "on a machine with one, give libtorch_npu.so with --op-library or "
              "CACHEDIT_OP_LIBRARIES"};
}

Availability no_cuda_kernel_yet(std::string_view hardware, std::string_view remedy) {
  return {.available = false,
          .reason =
              c10::str("this version has no CUDA kernel of it yet; it is specified for ", hardware),
          .remedy = std::string(remedy)};
}

}  // namespace cachedit::attention
