#include "nn/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>

#include <limits>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "base/stopwatch.h"
#include "comm/collectives.h"
#include "nn/linear_choice.h"
#include "nn/linear_forms.h"

namespace cachedit::nn {
namespace {

bool computes_on_file_types(const WeightScope& scope, at::ScalarType dtype) {
  return scope.options().pack_linear && has_packed_form(scope.device(), dtype);
}

bool hold_alike(const ChosenWeight& a, const ChosenWeight& b) {
  if (a.type != b.type || a.weight.quantized() != b.weight.quantized()) return false;
  if (!a.weight.quantized()) return true;
  const at::Tensor &mine = a.weight.scales, &other = b.weight.scales;
  return mine.dim() == other.dim() && (mine.numel() == 1) == (other.numel() == 1) &&
         (mine.dim() < 2 || mine.size(1) == other.size(1)) &&
         a.weight.values.scalar_type() == b.weight.values.scalar_type();
}

/// The form of layers that are held alike, one below the other.
std::unique_ptr<LinearForm> make_form(const WeightScope& scope,
                                      const std::vector<ChosenWeight>& chosen,
                                      const at::Tensor& bias, at::ScalarType dtype) {
  std::vector<LinearWeight> weights;
  weights.reserve(chosen.size());
  for (const ChosenWeight& one : chosen) weights.push_back(one.weight);
  std::unique_ptr<LinearForm> form;
  if (chosen[0].type) {
    form = make_quantized_form(weights, bias, *chosen[0].type,
                               scope.options().quantization.group_size);
  } else if (computes_on_file_types(scope, dtype)) {
    form = make_packed_form(weights, bias, dtype);
  } else {
    std::vector<at::Tensor> plain;
    plain.reserve(weights.size());
    for (const LinearWeight& weight : weights) {
      plain.push_back(dequantized(weight, dtype).to(scope.device()));
    }
    return make_aten_form(plain.size() == 1 ? plain[0] : at::cat(plain), bias);
  }
  std::vector<at::Tensor> files;
  files.reserve(weights.size());
  for (const LinearWeight& weight : weights) files.push_back(weight.file);
  scope.release_pages(files);
  return form;
}

/// `t` [..., C] with 3 dimensions.
at::Tensor as_rows(const at::Tensor& t) {
  if (!t.defined() || t.dim() == 3) return t;
  return t.dim() == 2 ? t.unsqueeze(0) : t.flatten(1, -2);
}

/// The largest magnitude of each row, or batch item, over all ranks.
at::Tensor largest_of_rows(comm::Communicator& group, const LinearCall& call, RowScale scale) {
  const auto magnitude = [](const at::Tensor& t) {
    return at::linalg_vector_norm(t, std::numeric_limits<double>::infinity(), {-1}, false,
                                  at::kFloat);
  };
  at::Tensor largest = magnitude(call.input);
  if (call.second.defined()) largest = at::maximum(largest, magnitude(call.second));
  if (largest.numel() == 0) return largest;
  if (scale == RowScale::kPerItem) largest = largest.amax(1, true).expand(largest.sizes());
  const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), 1);
  return comm::all_gather(group, largest.unsqueeze(0).contiguous(), sizes, 0).amax(0);
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
  std::vector<ChosenWeight> chosen;
  std::vector<at::Tensor> biases;
  bool missing = false;
  for (const WeightScope& scope : scopes) {
    chosen.push_back(choose_weight(scope, out, in, rule, dtype_));
    const at::Tensor& values = chosen.back().weight.values;
    missing |= values.is_meta();
    out_features_ += values.size(0);
    if (bias == Bias::kNo) continue;
    biases.push_back(rule == nullptr || rows ? scope.take_as("bias", {out}, dtype_)
                                             : scope.take_share("bias", {out}, 0, *rule, dtype_));
    missing |= biases.back().is_meta();
  }
  if (missing) return;  // the loader's finish() throws
  in_features_ = chosen[0].weight.inputs();
  at::Tensor all = biases.empty() ? at::Tensor() : at::cat(biases);
  if (rows) std::swap(all, bias_);
  bool alike = true;
  for (const ChosenWeight& one : chosen) alike &= hold_alike(one, chosen[0]);
  std::vector<int64_t> outputs, bytes;
  if (first.options().list_only) {
    bytes.resize(chosen.size(), 0);
  } else if (alike) {
    form_ = make_form(first, chosen, all, dtype_);
    bytes.resize(chosen.size(), form_->bytes() / static_cast<int64_t>(chosen.size()));
  } else {
    std::vector<std::unique_ptr<LinearForm>> forms;
    for (size_t i = 0; i < chosen.size(); ++i) {
      forms.push_back(
          make_form(first, {chosen[i]}, biases.empty() ? at::Tensor() : biases[i], dtype_));
      outputs.push_back(chosen[i].weight.values.size(0));
      bytes.push_back(forms.back()->bytes());
    }
    form_ = make_joined_form(std::move(forms), std::move(outputs));
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    const LinearWeight& weight = chosen[i].weight;
    scopes[i].record({.layer = scopes[i].layer(),
                      .type = chosen[i].type,
                      .note = chosen[i].note,
                      .was_quantized = !at::isFloatingType(weight.file.scalar_type()) ||
                                       weight.file.element_size() == 1,
                      .stored_bytes = weight.stored_bytes,
                      .bytes = bytes[i]});
  }
}

void Linear::check_input(const LinearCall& call) const {
  const at::Tensor& x = call.input;
  if (x.dim() < 2) {
    fail<InputError>("linear", "the input must have at least 2 dimensions: got ", x.sizes());
  }
  const int64_t width = x.size(-1) + (call.second.defined() ? call.second.size(-1) : 0);
  if (width != in_features_) {
    fail<InputError>("linear", "the layer takes ", in_features_, " features: got ", width, " in ",
                     x.sizes());
  }
  if (call.factor.defined() && call.residual.defined()) {
    fail<InputError>("linear", "a call takes a residual or a factor: got both");
  }
  const auto computes = [](at::ScalarType type) {
    return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
  };
  if (!computes(x.scalar_type()) ||
      (call.second.defined() && call.second.scalar_type() != x.scalar_type())) {
    fail<InputError>("linear", "inputs must be fp32, bf16 or fp16, both parts of one type: got ",
                     dtype_name(x.scalar_type()), " and ",
                     call.second.defined() ? dtype_name(call.second.scalar_type()) : "nothing");
  }
}

at::Tensor Linear::run(const LinearCall& original) const {
  check_input(original);
  std::vector<int64_t> shape = original.input.sizes().vec();
  LinearCall call = original;
  call.input = as_rows(call.input);
  call.second = as_rows(call.second);
  call.residual = as_rows(call.residual);
  call.factor = as_rows(call.factor);
  if (shard_ == Shard::kGatheredColumns) {
    call.out = at::Tensor();
    call.residual = at::Tensor();
    call.factor = at::Tensor();
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
    rest.factor = as_rows(rest.factor);
    finish_call(y, rest);
    call.out = rest.out;
  }
  if (original.out.defined()) {
    if (!call.out.is_alias_of(original.out))
      original.out.copy_(call.out.view(original.out.sizes()));
    return original.out;
  }
  shape.back() = call.out.size(2);
  return call.out.view(shape);
}

void Linear::run_form(const LinearCall& call, const at::Tensor& largest) const {
  const auto compute = [&] {
    largest.defined() ? form_->run_share(call, largest) : form_->run(call);
  };
  if (!profile_) return compute();
  const Stopwatch watch;
  compute();
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

void Linear::summed(const LinearCall& call) const {
  LinearCall product{.input = call.input, .second = call.second};
  product.out = at::empty(call.out.sizes(), call.out.options());
  const RowScale scale = form_->row_scale();
  run_form(product,
           scale == RowScale::kNone ? at::Tensor() : largest_of_rows(*group_, product, scale));
  comm::all_reduce_sum(*group_, product.out);
  if (bias_.defined()) product.out.add_(bias_);
  finish_call(product.out, call);
}

at::Tensor each_alone(const Linear& layer, const at::Tensor& vectors) {
  std::vector<int64_t> shape = vectors.sizes().vec();
  const at::Tensor y = layer(vectors.reshape({-1, 1, vectors.size(-1)}));
  shape.back() = y.size(-1);
  return y.view(shape);
}

}  // namespace cachedit::nn
