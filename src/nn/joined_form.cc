#include <utility>

#include "nn/linear_forms.h"

namespace cachedit::nn {
namespace {

class JoinedForm final : public LinearForm {
 public:
  JoinedForm(std::vector<std::unique_ptr<LinearForm>> forms, std::vector<int64_t> outputs)
      : forms_(std::move(forms)), outputs_(std::move(outputs)) {}

  void run(const LinearCall& whole) const override {
    int64_t begin = 0;
    for (size_t i = 0; i < forms_.size(); ++i) {
      const auto part = [&](const at::Tensor& t) {
        return t.defined() ? t.narrow(-1, begin, outputs_[i]) : t;
      };
      LinearCall call = whole;
      call.out = part(whole.out);
      call.residual = part(whole.residual);
      call.gate = part(whole.gate);
      call.factor = part(whole.factor);
      forms_[i]->run(call);
      begin += outputs_[i];
    }
  }

  int64_t bytes() const override {
    int64_t sum = 0;
    for (const auto& form : forms_) sum += form->bytes();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<LinearForm>> forms_;
  std::vector<int64_t> outputs_;
};

}  // namespace

std::unique_ptr<LinearForm> make_joined_form(std::vector<std::unique_ptr<LinearForm>> forms,
                                             std::vector<int64_t> outputs) {
  return std::make_unique<JoinedForm>(std::move(forms), std::move(outputs));
}

}  // namespace cachedit::nn
