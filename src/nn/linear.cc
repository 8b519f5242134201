#include "nn/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "base/stopwatch.h"
#include "comm/collectives.h"
#include "nn/linear_forms.h"

namespace cachedit::nn {
namespace {

bool computes_on_file_types(const WeightScope& scope, at::ScalarType dtype) {
  return scope.options().pack_linear && has_packed_form(scope.device(), dtype);
}

std::string layer_of(const WeightScope& scope) {
  return scope.prefix().substr(0, scope.prefix().size() - 1);
}

/// How the weights are to be held; none: as plain numbers.
std::optional<QuantType> chosen_type(const WeightScope& scope, const LinearWeight& weight,
                                     std::string& note) {
  const std::optional<QuantType> asked = scope.options().quantization.type_of(layer_of(scope));
  if (!weight.quantized()) return asked;
  // What the file holds cannot be made better; a plan says how its numbers are meant.
  const at::ScalarType values = weight.values.scalar_type();
  const auto keeps = [&](QuantType type) {
    switch (type) {
      case QuantType::kInt8PerRow:
      case QuantType::kInt8PerTensor:
      case QuantType::kInt8WeightOnly:
        return values == at::kChar;
      case QuantType::kInt4WeightOnly:
        return values == at::kByte;
      default:
        return values == at::kFloat8_e4m3fn;
    }
  };
  if (asked && keeps(*asked)) return asked;
  if (asked) note = c10::str("stored as ", dtype_name(values), ", kept so");
  // Without a plan activations are not rounded: that only costs accuracy.
  if (values == at::kFloat8_e4m3fn) return QuantType::kFloat8WeightOnly;
  return values == at::kChar ? QuantType::kInt8WeightOnly : QuantType::kInt4WeightOnly;
}

at::Tensor as_rows(const at::Tensor& t) {
  if (!t.defined() || t.dim() == 3) return t;
  return t.dim() == 2 ? t.unsqueeze(0) : t.reshape({1, -1, t.size(-1)});
}

}  // namespace

Linear::Linear(const WeightScope& scope, int64_t in_features, int64_t out_features, Bias bias,
               std::optional<at::ScalarType> dtype)
    : dtype_(dtype.value_or(scope.dtype())) {
  bind({scope}, in_features, out_features, bias);
}

Linear::Linear(const std::vector<WeightScope>& scopes, int64_t in_features,
               int64_t out_features_each)
    : dtype_(scopes.at(0).dtype()) {
  bind(scopes, in_features, out_features_each, Bias::kYes);
}

void Linear::bind(const std::vector<WeightScope>& scopes, int64_t in, int64_t out, Bias bias) {
  const WeightScope& first = scopes[0];
  profile_ = first.options().profile;
  const ShardRule* rule = first.shard_rule();
  if (rule != nullptr) {
    shard_ = rule->shard;
    group_ = first.shard_group();
  }
  const bool rows = shard_ == Shard::kRows;
  std::vector<LinearWeight> weights;
  std::vector<at::Tensor> biases, files;
  bool missing = false;
  for (const WeightScope& scope : scopes) {
    weights.push_back(take_linear_weight(scope, out, in, rule));
    missing |= weights.back().values.is_meta();
    files.push_back(weights.back().values);
    out_features_ += weights.back().values.size(0);
    if (bias == Bias::kNo) continue;
    biases.push_back(rule == nullptr || rows ? scope.take_as("bias", {out}, dtype_)
                                             : scope.take_share("bias", {out}, 0, *rule, dtype_));
    missing |= biases.back().is_meta();
  }
  if (missing) return;  // the loader's finish() throws
  at::Tensor all = biases.empty() ? at::Tensor() : at::cat(biases);
  if (rows) std::swap(all, bias_);

  std::string note;
  const std::optional<QuantType> type = chosen_type(first, weights[0], note);
  const bool kernels = has_packed_form(first.device(), dtype_);
  if (type && kernels) {
    form_ = make_quantized_form(weights, all, *type, first.options().quantization.group_size);
    first.release_pages(files);
  } else if (computes_on_file_types(first, dtype_)) {
    form_ = make_packed_form(weights, all, dtype_);
    first.release_pages(files);
  } else {
    if (type) note = "not quantized: there are kernels for it on the CPU only";
    std::vector<at::Tensor> plain;
    for (const LinearWeight& weight : weights) {
      plain.push_back(dequantized(weight, dtype_).to(first.device()));
    }
    form_ = make_aten_form(plain.size() == 1 ? plain[0] : at::cat(plain), all);
  }
  first.record({.layer = layer_of(first),
                .type = type && kernels ? type : std::nullopt,
                .note = note,
                .bytes = form_->bytes()});
}

at::Tensor Linear::run(const LinearCall& original) const {
  if (original.input.dim() < 2) {
    fail<InputError>("linear", "the input must have at least 2 dimensions: got ",
                     original.input.sizes());
  }
  std::vector<int64_t> shape = original.input.sizes().vec();
  LinearCall call = original;
  call.input = as_rows(call.input);
  call.second = as_rows(call.second);
  call.residual = as_rows(call.residual);
  if (shard_ == Shard::kGatheredColumns) {
    call.out = at::Tensor();
    call.residual = at::Tensor();
    call.activation.reset();
  }
  if (!call.out.defined()) {
    call.out = at::empty({call.input.size(0), call.input.size(1), out_features_},
                         call.input.options().dtype(dtype_));
  } else {
    call.out = as_rows(call.out);
  }
  if (shard_ == Shard::kRows) {
    summed(call);
  } else {
    run_form(call);
  }
  if (shard_ == Shard::kGatheredColumns) {
    LinearCall rest = original;
    const at::Tensor y = gathered(call.out);
    rest.out = original.out.defined() ? as_rows(original.out) : at::empty(y.sizes(), y.options());
    rest.residual = as_rows(rest.residual);
    finish_call(y, rest);
    call.out = rest.out;
  }
  if (original.out.defined()) return original.out;
  shape.back() = call.out.size(2);
  return call.out.view(shape);
}

void Linear::run_form(const LinearCall& call) const {
  if (!profile_) return form_->run(call);
  const Stopwatch watch;
  form_->run(call);
  profile_->linear_seconds += watch.seconds();
  const int64_t inputs = call.input.size(2) + (call.second.defined() ? call.second.size(2) : 0);
  profile_->linear_operations += 2.0 *
                                 static_cast<double>(call.input.size(0) * call.input.size(1)) *
                                 static_cast<double>(inputs) * static_cast<double>(out_features_);
}

at::Tensor Linear::gathered(const at::Tensor& y) const {
  const std::vector<int64_t> sizes(static_cast<size_t>(group_->size()), y.size(-1));
  return comm::all_gather(*group_, y, sizes, -1);
}

at::Tensor Linear::summed(const LinearCall& call) const {
  LinearCall product{.input = call.input, .second = call.second};
  product.out = at::empty(call.out.sizes(), call.out.options());
  run_form(product);
  comm::all_reduce_sum(*group_, product.out);
  if (bias_.defined()) product.out.add_(bias_);
  finish_call(product.out, call);
  return call.out;
}

}  // namespace cachedit::nn
