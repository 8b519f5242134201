#include "nn/linear_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include "base/dtype_name.h"
#include "base/fail.h"

namespace cachedit::nn {
namespace {

constexpr int64_t kBlock = 128;

/// Scales that multiply the values, as compressed-tensors, ComfyUI and DeepSeek name them (the last
/// calls the multiplier an inverse).
constexpr const char* kScaleNames[] = {"weight_scale", "scale_weight", "weight_scale_inv",
                                       "weight.scale"};
/// Scales of activations that were measured beforehand; here they are measured at each call.
constexpr const char* kInputScaleNames[] = {"input_scale", "scale_input", "activation_scale"};

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

struct ScaleShape {
  QuantType type;
  int64_t rows_per_scale;     ///< of the weight's outputs; 0: all
  int64_t columns_per_scale;  ///< of its inputs; 0: all
};

/// What scales of this shape cover, for values of float8 or int8 [out, in] or packed int4.
ScaleShape interpret(const WeightScope& scope, at::ScalarType values, at::IntArrayRef shape,
                     int64_t out, int64_t in) {
  const int64_t count = c10::multiply_integers(shape);
  const bool float8 = values == at::kFloat8_e4m3fn;
  if (values == at::kByte) {
    const bool groups = shape.size() == 2 && shape[0] == out && shape[1] > 0;
    const int64_t group = groups ? divide_up(in, shape[1]) : 0;
    if (group == 32 || group == 64 || group == 128) return {QuantType::kInt4WeightOnly, 1, group};
  } else if (count == out && shape.size() <= 2 && shape[0] == out) {
    return {float8 ? QuantType::kFloat8WeightOnly : QuantType::kInt8WeightOnly, 1, 0};
  } else if (count == 1) {
    return {float8 ? QuantType::kFloat8PerTensor : QuantType::kInt8PerTensor, 0, 0};
  } else if (float8 && shape.size() == 2 && shape[0] == divide_up(out, kBlock) &&
             shape[1] == divide_up(in, kBlock)) {
    return {QuantType::kFloat8PerBlock, kBlock, kBlock};
  }
  fail<WeightError>(
      scope.prefix() + "weight", "the scale of a ", dtype_name(values), " weight of ", out, " x ",
      in, " must be one number, one per output, or one per block of 128: ", "got ", shape);
}

/// This rank's share of the scales along `dim`, or nothing where it does not end between scales.
std::optional<at::Tensor> share_of_scales(const at::Tensor& scales, int64_t dim, int64_t per_scale,
                                          int64_t size, const ShardRule& rule,
                                          const comm::Communicator& group) {
  if (per_scale == 0) return scales;
  std::vector<int64_t> parts = rule.parts;
  if (parts.empty()) parts.push_back(size);
  std::vector<int64_t> chosen;
  int64_t begin = 0;
  for (const int64_t part : parts) {
    const int64_t own = part / group.size(), first = begin + own * group.rank();
    if (first % per_scale != 0 || (own % per_scale != 0 && first + own != size)) return {};
    for (int64_t i = first / per_scale; i < divide_up(first + own, per_scale); ++i) {
      chosen.push_back(i);
    }
    begin += part;
  }
  std::vector<at::Tensor> pieces;
  for (const int64_t i : chosen) pieces.push_back(scales.select(dim, i));
  return at::stack(pieces, dim);
}

}  // namespace

LinearWeight take_linear_weight(const WeightScope& scope, int64_t out, int64_t in,
                                const ShardRule* rule) {
  const int64_t dim = rule != nullptr && rule->shard == Shard::kRows ? 1 : 0;
  const auto dtype = scope.stored_dtype("weight");
  const bool int4 = dtype == at::kByte;
  const std::vector<int64_t> shape = {out, int4 ? divide_up(in, 2) : in};
  LinearWeight weight;
  if (int4 && rule != nullptr && dim == 1 && in % (2 * scope.shard_group()->size()) != 0) {
    fail<UnsupportedError>(scope.prefix() + "weight",
                           "a share of int4 weights must be whole bytes: ", "got ", in,
                           " inputs and ", scope.shard_group()->size(), " ranks");
  }
  ShardRule bytes_rule = rule != nullptr ? *rule : ShardRule();
  if (int4 && dim == 1) {
    for (int64_t& part : bytes_rule.parts) part /= 2;
  }
  weight.values = scope.take_stored("weight", shape, rule == nullptr ? -1 : dim,
                                    rule == nullptr ? nullptr : &bytes_rule);
  for (const char* name : kInputScaleNames) {
    if (scope.stored_dtype(name)) scope.mark_used(name);
  }
  if (!dtype || (*dtype != at::kChar && *dtype != at::kFloat8_e4m3fn && !int4)) return weight;
  for (const char* name : kScaleNames) {
    if (!scope.stored_dtype(name)) continue;
    const std::vector<int64_t> scale_shape = scope.stored_shape(name);
    const ScaleShape covers = interpret(scope, *dtype, scale_shape, out, in);
    at::Tensor scales = scope.take_stored(name, scale_shape, -1, nullptr).to(at::kFloat);
    const bool two = covers.columns_per_scale > 0;
    scales = two ? scales.view(scale_shape) : scales.reshape({-1});
    if (rule != nullptr && (dim == 0 || two)) {
      const auto share =
          share_of_scales(scales, dim, dim == 0 ? covers.rows_per_scale : covers.columns_per_scale,
                          dim == 0 ? out : in, *rule, *scope.shard_group());
      if (!share) {
        fail<UnsupportedError>(scope.prefix() + name,
                               "a rank's share of the weight must end where a "
                               "scale does: got scales ",
                               scale_shape, " for ", out, " x ", in, " and ",
                               scope.shard_group()->size(), " ranks; use another tp_size");
      }
      scales = *share;
    }
    weight.scales = scales.contiguous();
    weight.stored = covers.type;
    return weight;
  }
  if (*dtype != at::kFloat8_e4m3fn) {
    fail<WeightError>(scope.prefix() + "weight", "a ", dtype_name(*dtype),
                      " weight needs a scale "
                      "beside it (weight_scale or scale_weight): got none");
  }
  weight.scales = at::ones({1}, at::kFloat);
  weight.stored = QuantType::kFloat8WeightOnly;
  return weight;
}

at::Tensor dequantized(const LinearWeight& weight, at::ScalarType dtype) {
  if (!weight.quantized()) return weight.values.to(dtype);
  at::Tensor values = weight.values;
  if (values.scalar_type() == at::kByte) {
    const at::Tensor low = at::bitwise_and(values, 15).to(at::kChar);
    const at::Tensor high = values.__rshift__(4).to(at::kChar);
    const at::Tensor both = at::stack({low, high}, -1).flatten(-2);
    values = both - 16 * both.gt(7).to(at::kChar);  // two's complement of four bits
  }
  values = values.to(at::kFloat);
  at::Tensor scales = weight.scales;
  if (scales.dim() == 2) {
    const auto spread = [](const at::Tensor& t, int64_t dim, int64_t size) {
      const int64_t each = divide_up(size, t.size(dim));
      return t.repeat_interleave(each, dim).narrow(dim, 0, size);
    };
    scales = spread(spread(scales, 0, values.size(0)), 1, values.size(1));
  } else if (scales.numel() > 1) {
    scales = scales.unsqueeze(1);
  }
  return (values * scales).to(dtype);
}

}  // namespace cachedit::nn
