#include "nn/weight_quantizer.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "base/cpu.h"
#include "base/fail.h"

namespace cachedit::nn {

QuantRecipe recipe_of(QuantType type) {
  using kernels::ActivationScale;
  using kernels::WeightForm;
  using kernels::WeightScale;
  switch (type) {
    case QuantType::kInt8PerRow:
      return {WeightForm::kInt8, WeightScale::kPerChannel};
    case QuantType::kInt8PerTensor:
      return {WeightForm::kInt8, WeightScale::kPerTensor, ActivationScale::kPerTensor};
    case QuantType::kInt8WeightOnly:
      return {WeightForm::kInt8WeightOnly, WeightScale::kPerChannel};
    case QuantType::kInt4WeightOnly:
      return {WeightForm::kInt4WeightOnly, WeightScale::kPerGroup};
    case QuantType::kFloat8PerRow:
    case QuantType::kFloat8WeightOnly:
      return {WeightForm::kE4M3WeightOnly, WeightScale::kPerChannel};
    case QuantType::kFloat8PerTensor:
      return {WeightForm::kE4M3WeightOnly, WeightScale::kPerTensor};
    case QuantType::kFloat8PerBlock:
      return {WeightForm::kE4M3WeightOnly, WeightScale::kPerBlock};
  }
  fail<InputError>("quantize", "no such type: got ", static_cast<int>(type));
}

kernels::WeightSource source_of(const LinearWeight& weight) {
  using kernels::SourceType;
  const auto type = [&] {
    switch (weight.values.scalar_type()) {
      case at::kBFloat16:
        return SourceType::kBFloat16;
      case at::kHalf:
        return SourceType::kFloat16;
      case at::kChar:
        return SourceType::kInt8;
      case at::kByte:
        return SourceType::kInt4;
      case at::kFloat8_e4m3fn:
        return SourceType::kE4M3;
      default:
        return SourceType::kFloat32;
    }
  }();
  const int64_t per_byte = type == SourceType::kInt4 ? 2 : 1;
  return {.type = type,
          .data = weight.values.const_data_ptr(),
          .rows = weight.values.size(0),
          .stride = per_byte * weight.values.stride(0),
          .scales = weight.quantized() ? weight.scales.const_data_ptr<float>() : nullptr};
}

void check_finite(const at::Tensor& weights, std::string_view where) {
  if (weights.numel() == 0) return;
  const auto [least, most] = at::aminmax(weights);  // NaN if there is one
  const double low = least.item<double>(), high = most.item<double>();
  if (std::isfinite(low) && std::isfinite(high)) return;
  fail<WeightError>(where, "weights must be finite to be quantized: got ",
                    std::isfinite(low) ? high : low,
                    "; take another copy of the checkpoint, or exclude this layer");
}

LinearWeight quantized(const LinearWeight& plain, QuantType type, int64_t group_size) {
  const QuantRecipe recipe = recipe_of(type);
  const int64_t rows = plain.values.size(0);
  const kernels::WeightSpec spec{.form = recipe.form,
                                 .outputs = rows,
                                 .inputs = plain.values.size(1),
                                 .scale = recipe.scale,
                                 .group = group_size};
  const StoredKind kind = stored_kind(type);
  const at::ScalarType dtype = kind == StoredKind::kInt8   ? at::kChar
                               : kind == StoredKind::kInt4 ? at::kByte
                                                           : at::kFloat8_e4m3fn;
  LinearWeight result = plain;
  result.values = at::empty({rows, kernels::quantized_row_bytes(spec)}, dtype);
  result.scales = at::empty({kernels::weight_scale_count(spec, rows)}, at::kFloat);
  result.stored = type;
  kernels::quantize_weight(spec, source_of(plain), result.values.mutable_data_ptr(),
                           result.scales.mutable_data_ptr<float>(), cpu_threads(), cpu_isa());
  if (recipe.scale == kernels::WeightScale::kPerGroup) {
    result.scales = result.scales.view({rows, -1});
  } else if (recipe.scale == kernels::WeightScale::kPerBlock) {
    result.scales = result.scales.view({-1, (spec.inputs + 127) / 128});
  }
  return result;
}

}  // namespace cachedit::nn
