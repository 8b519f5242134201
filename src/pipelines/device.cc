#include "pipelines/device.h"

#include <ATen/Context.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <optional>

#include "attention/op_library.h"
#include "base/fail.h"
#include "base/log.h"

namespace cachedit::pipelines {
namespace {

/// N of "kind:N", 0 of "kind"; none where `name` is neither.
std::optional<int> device_index(const std::string& name, const std::string& kind) {
  if (name == kind) return 0;
  const size_t digits = kind.size() + 1;
  const bool numbered = name.starts_with(kind + ":") && name.size() > digits &&
                        name.size() < digits + 4 &&
                        name.find_first_not_of("0123456789", digits) == std::string::npos;
  if (!numbered) return std::nullopt;
  return std::stoi(name.substr(digits));
}

at::Device numbered_device(const std::string& name, at::DeviceType type, int index) {
  const auto count =
      static_cast<int>(at::globalContext().getAcceleratorHooksInterface(type).deviceCount());
  if (index >= count) {
    fail<InputError>("device", "no such device: got '", name, "', this machine has ", count);
  }
  return at::Device(type, static_cast<c10::DeviceIndex>(index));
}

}  // namespace

at::Device parse_device(const std::string& name) {
  if (name == "auto") return at::hasCUDA() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (name == "cpu") return at::kCPU;
  if (const std::optional<int> index = device_index(name, "cuda")) {
    if (!at::hasCUDA()) {
      fail<UnsupportedError>("device",
                             "the linked LibTorch has no CUDA, or this machine no CUDA "
                             "device: got '",
                             name, "'; use cpu");
    }
    return numbered_device(name, at::kCUDA, *index);
  }
  if (const std::optional<int> index = device_index(name, "npu")) {
    attention::load_environment_op_libraries();  // torch_npu's may be among them
    if (!at::isPrivateUse1HooksRegistered()) {
      fail<UnsupportedError>("device", "torch_npu's library is not loaded: got '", name,
                             "'; name it in CACHEDIT_OP_LIBRARIES, or use cpu");
    }
    return numbered_device(name, at::kPrivateUse1, *index);
  }
  fail<InputError>("device", "unknown device: got '", name,
                   "'; use auto, cpu, cuda, cuda:N, npu or npu:N");
}

at::ScalarType parse_dtype(const std::string& name, at::ScalarType stored, at::Device device) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  if (name != "auto") {
    fail<InputError>("dtype", "unknown dtype: got '", name, "'; use auto, fp32, bf16 or fp16");
  }
  if (stored == at::kHalf && device.is_cpu()) {
    log_info("[dtype] the checkpoint is float16, which is slow on a CPU: computing in bfloat16");
    return at::kBFloat16;
  }
  // Anything that is no 16-bit type was stored for precision: compute it in float32.
  return stored == at::kBFloat16 || stored == at::kHalf ? stored : at::kFloat;
}

}  // namespace cachedit::pipelines
