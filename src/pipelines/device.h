// The names of devices and dtypes that users type.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace cachedit::pipelines {

/// "auto", "cpu", "cuda", "cuda:N", "npu", "npu:N". Throws InputError for other names,
/// UnsupportedError for CUDA where the linked LibTorch or this machine has none, and for an NPU
/// where torch_npu's library is not loaded.
at::Device parse_device(const std::string& name);

/// "auto", "fp32", "bf16", "fp16"; `stored` is the checkpoint's dtype. On a CPU "auto" turns
/// float16 into bfloat16. Throws InputError for other names.
at::ScalarType parse_dtype(const std::string& name, at::ScalarType stored, at::Device device);

}  // namespace cachedit::pipelines
