#include "nn/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <map>

#include "base/fail.h"

namespace cachedit::nn {

Activation parse_activation(const std::string& name, const std::string& where) {
  static const std::map<std::string, Activation> names = {
      {"gelu", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu-approximate", Activation::kGeluTanh},
      {"quick_gelu", Activation::kQuickGelu},
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"relu", Activation::kRelu}};
  const auto found = names.find(name);
  if (found == names.end()) {
    std::string known;
    for (const auto& [key, value] : names) known += (known.empty() ? "" : ", ") + key;
    fail<ConfigError>(where, "unknown activation: got '", name, "'; known are ", known);
  }
  return found->second;
}

at::Tensor activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kGeluTanh:
      return at::gelu(x, "tanh");
    case Activation::kQuickGelu:
      return x * at::sigmoid(x * 1.702);
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kRelu:
      return at::relu(x);
  }
  fail<InputError>("activation", "no such value: got ", static_cast<int>(activation));
}

}  // namespace cachedit::nn
