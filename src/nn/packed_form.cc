// Linear layers on the CPU's GEMM kernels.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/cpu.h"
#include "base/element_type.h"
#include "base/fail.h"
#include "kernels/gemm.h"
#include "nn/kernel_activation.h"
#include "nn/linear_forms.h"
#include "nn/weight_quantizer.h"

namespace cachedit::nn {
namespace {

constexpr int64_t kAlignment = 64;

/// Memory of `bytes`, and its first aligned byte.
struct Buffer {
  explicit Buffer(size_t bytes)
      : memory(at::empty({static_cast<int64_t>(bytes) + kAlignment}, at::kByte)) {
    const auto address = reinterpret_cast<uintptr_t>(memory.mutable_data_ptr());
    data = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }
  at::Tensor memory;
  void* data;
};

/// Whether the batch items of a tensor's rows follow each other without a gap.
bool is_one_block(const at::Tensor& t) {
  return !t.defined() || t.size(0) == 1 || t.stride(0) == t.size(1) * t.stride(1);
}

/// A tensor [B, N, C] whose last dimension is contiguous.
at::Tensor with_rows(const at::Tensor& t) {
  return !t.defined() || t.stride(2) == 1 || t.size(2) == 1 ? t : t.contiguous();
}

class PackedForm final : public LinearForm {
 public:
  PackedForm(const std::vector<LinearWeight>& weights, const at::Tensor& bias,
             kernels::WeightSpec spec, kernels::ActivationScale activation_scale)
      : spec_(spec), activation_scale_(activation_scale), packed_(0) {
    std::vector<kernels::WeightSource> sources;
    spec_.inputs = weights[0].inputs();
    spec_.outputs = 0;
    for (const LinearWeight& weight : weights) {
      sources.push_back(source_of(weight));
      spec_.outputs += weight.values.size(0);
    }
    packed_ = Buffer(kernels::packed_weight_bytes(spec_, cpu_isa()));
    kernels::pack_weight(spec_, sources.data(), static_cast<int>(sources.size()), packed_.data,
                         cpu_threads(), cpu_isa());
    if (bias.defined()) bias_ = bias.to(at::kFloat).contiguous();
  }

  int64_t bytes() const override { return static_cast<int64_t>(packed_.memory.nbytes()); }

  void run(const LinearCall& call) const override { run_share(call, at::Tensor()); }

  void run_share(const LinearCall& original, const at::Tensor& largest) const override {
    const std::optional<kernels::Activation> activation =
        original.activation ? kernel_activation(*original.activation) : kernels::Activation::kNone;
    if (!activation) {
      LinearCall product{.input = original.input, .second = original.second};
      product.out = at::empty(original.out.sizes(), original.out.options());
      run_share(product, largest);
      finish_call(product.out, original);
      return;
    }
    LinearCall call = original;
    call.input = with_rows(call.input);
    call.second = with_rows(call.second);
    call.residual = with_rows(call.residual);
    call.factor = with_rows(call.factor);
    const at::Tensor gate = call.gate.defined() ? call.gate.to(at::kFloat).contiguous() : call.gate;
    // Where one scale covers several rows, those are of one batch item: its result must not depend
    // on the other ones.
    const int64_t batch = call.input.size(0), rows = call.input.size(1);
    kernels::GemmProblem problem = problem_of(call, *activation);
    if (rows == 1) problem.activation_scale = kernels::ActivationScale::kPerRow;
    const bool item_scale = spec_.form == kernels::WeightForm::kInt8 &&
                            problem.activation_scale == kernels::ActivationScale::kPerTensor;
    const bool one_block = (!item_scale || batch == 1) && is_one_block(call.input) &&
                           is_one_block(call.second) && is_one_block(call.out) &&
                           is_one_block(call.residual) && is_one_block(call.factor) &&
                           (!gate.defined() || gate.size(0) == 1);
    problem.rows = one_block ? batch * rows : rows;
    problem.item_rows = rows;
    const at::Tensor magnitude = largest.defined() ? largest.contiguous() : largest;
    place(problem, call, gate, 0);
    const Buffer scratch(kernels::gemm_scratch_bytes(problem, cpu_threads().threads, cpu_isa()));
    for (int64_t b = 0; b < (one_block ? 1 : batch); ++b) {
      place(problem, call, gate, b);
      if (magnitude.defined()) {
        problem.input_magnitude = magnitude.const_data_ptr<float>() + b * rows;
      }
      kernels::gemm(problem, scratch.data, cpu_threads(), cpu_isa());
    }
  }

  RowScale row_scale() const override {
    if (spec_.form != kernels::WeightForm::kInt8) return RowScale::kNone;
    return activation_scale_ == kernels::ActivationScale::kPerRow ? RowScale::kPerRow
                                                                  : RowScale::kPerItem;
  }

 private:
  kernels::GemmProblem problem_of(const LinearCall& call, kernels::Activation activation) const {
    kernels::GemmProblem p;
    p.input_type = *element_type(call.input.scalar_type());
    p.weight = spec_;
    p.packed = packed_.data;
    p.activation_scale = activation_scale_;
    p.bias = bias_.defined() ? bias_.const_data_ptr<float>() : nullptr;
    p.activation = activation;
    p.combine = call.residual.defined() ? kernels::Combine::kGatedResidual
                : call.factor.defined() ? kernels::Combine::kMultiply
                                        : kernels::Combine::kStore;
    p.out_type = *element_type(call.out.scalar_type());
    return p;
  }

  /// Points at the tensors' batch item `b`.
  static void place(kernels::GemmProblem& p, const LinearCall& call, const at::Tensor& gate,
                    int64_t b) {
    const auto segment = [&](const at::Tensor& t) {
      if (!t.defined()) return kernels::GemmSegment();
      const at::Tensor item = t.select(0, b);
      return kernels::GemmSegment{item.const_data_ptr(), t.size(2), t.stride(1)};
    };
    p.input[0] = segment(call.input);
    p.input[1] = segment(call.second);
    p.out = call.out.select(0, b).mutable_data_ptr();
    p.out_stride = call.out.stride(1);
    const at::Tensor& other = call.residual.defined() ? call.residual : call.factor;
    if (other.defined()) {
      p.residual = other.select(0, b).const_data_ptr();
      p.residual_stride = other.stride(1);
    }
    if (gate.defined()) p.gate = gate.select(0, gate.size(0) == 1 ? 0 : b).const_data_ptr<float>();
  }

  kernels::WeightSpec spec_;
  kernels::ActivationScale activation_scale_;
  Buffer packed_;
  at::Tensor bias_;  // fp32
};

/// What stored scales cover, whatever the type is called.
kernels::WeightScale scale_of(const LinearWeight& weight, kernels::WeightScale wanted) {
  if (wanted == kernels::WeightScale::kPerGroup) return wanted;
  if (weight.scales.dim() == 2) return kernels::WeightScale::kPerBlock;
  return weight.scales.numel() == 1 ? kernels::WeightScale::kPerTensor
                                    : kernels::WeightScale::kPerChannel;
}

/// Float8 W8A8: the kernels multiply with bfloat16, which holds every e4m3 number, so activations
/// that were rounded to e4m3 before give the products of float8 hardware.
class RoundedActivations final : public LinearForm {
 public:
  RoundedActivations(std::unique_ptr<LinearForm> inner, QuantType type)
      : inner_(std::move(inner)), type_(type) {}

  void run(const LinearCall& call) const override { run_share(call, at::Tensor()); }
  void run_share(const LinearCall& original, const at::Tensor& largest) const override {
    LinearCall call = original;
    call.input = rounded_to_float8(original.input, original.second, type_, largest);
    call.second = at::Tensor();
    inner_->run(call);
  }
  RowScale row_scale() const override {
    if (type_ == QuantType::kFloat8PerBlock) return RowScale::kNone;
    return type_ == QuantType::kFloat8PerRow ? RowScale::kPerRow : RowScale::kPerItem;
  }
  int64_t bytes() const override { return inner_->bytes(); }

 private:
  std::unique_ptr<LinearForm> inner_;
  QuantType type_;
};

}  // namespace

bool has_packed_form(at::Device device, at::ScalarType dtype) {
  return device.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
}

std::unique_ptr<LinearForm> make_packed_form(const std::vector<LinearWeight>& weights,
                                             at::Tensor bias, at::ScalarType dtype) {
  // float16 has 3 bits more than bfloat16, and no fast product on CPUs: it computes in fp32.
  const kernels::WeightForm form =
      dtype == at::kBFloat16 ? kernels::WeightForm::kBFloat16 : kernels::WeightForm::kFloat32;
  return std::make_unique<PackedForm>(weights, bias, kernels::WeightSpec{.form = form},
                                      kernels::ActivationScale::kPerRow);
}

std::unique_ptr<LinearForm> make_quantized_form(const std::vector<LinearWeight>& weights,
                                                at::Tensor bias, QuantType type,
                                                int64_t group_size) {
  const QuantRecipe recipe = recipe_of(type);
  kernels::WeightSpec spec{.form = recipe.form, .scale = recipe.scale, .group = group_size};
  if (weights[0].quantized()) {
    spec.scale = scale_of(weights[0], recipe.scale);
    if (spec.scale == kernels::WeightScale::kPerGroup) {
      spec.group = weights[0].inputs() / weights[0].scales.size(1);
    }
  }
  auto packed = std::make_unique<PackedForm>(weights, bias, spec, recipe.activation);
  const bool rounds = type == QuantType::kFloat8PerRow || type == QuantType::kFloat8PerTensor ||
                      type == QuantType::kFloat8PerBlock;
  if (!rounds) return packed;
  return std::make_unique<RoundedActivations>(std::move(packed), type);
}

}  // namespace cachedit::nn
