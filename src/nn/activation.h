// Activation functions by the names that configs use.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace cachedit::nn {

enum class Activation { kGelu, kGeluTanh, kQuickGelu, kSilu, kRelu };

/// "gelu", "gelu_new" / "gelu_pytorch_tanh" / "gelu-approximate", "quick_gelu", "silu" / "swish",
/// "relu". Throws ConfigError listing these; `where` names the config.
Activation parse_activation(const std::string& name, const std::string& where);

at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace cachedit::nn
