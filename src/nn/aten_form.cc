#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include "nn/linear_forms.h"

namespace cachedit::nn {
namespace {

class AtenForm final : public LinearForm {
 public:
  AtenForm(at::Tensor weight, at::Tensor bias)
      : weight_(std::move(weight)), bias_(std::move(bias)) {}

  void run(const LinearCall& call) const override {
    const at::Tensor x =
        call.second.defined() ? at::cat({call.input, call.second}, -1) : call.input;
    finish_call(at::linear(x, weight_, bias_.defined() ? std::optional(bias_) : std::nullopt),
                call);
  }

  int64_t bytes() const override { return static_cast<int64_t>(weight_.nbytes()); }

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace

std::unique_ptr<LinearForm> make_aten_form(at::Tensor weight, at::Tensor bias) {
  return std::make_unique<AtenForm>(std::move(weight), std::move(bias));
}

void finish_call(const at::Tensor& y, const LinearCall& call) {
  at::Tensor value = call.activation ? activate(*call.activation, y) : y;
  if (call.factor.defined()) value = call.factor * value;
  if (call.residual.defined()) {
    value = call.gate.defined() ? at::addcmul(call.residual, call.gate.unsqueeze(1), value)
                                : call.residual + value;
  }
  call.out.copy_(value);
}

}  // namespace cachedit::nn
