#include "nn/linear_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "nn/comfy_quant.h"

namespace cachedit::nn {
namespace {

/// Scales that multiply the values, as compressed-tensors, ComfyUI and DeepSeek name them (the last
/// calls the multiplier an inverse).
constexpr const char* kScaleNames[] = {"weight_scale", "scale_weight", "weight_scale_inv",
                                       "weight.scale"};
/// Scales of activations that were measured beforehand; here they are measured at each call.
constexpr const char* kInputScaleNames[] = {"input_scale", "scale_input", "activation_scale"};

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

bool is_plain(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf || type == at::kDouble;
}

/// What scales cover, and how the values that they belong to were made.
struct Coverage {
  QuantType type;
  int64_t rows_per_scale;     ///< of the weight's outputs; 0: all
  int64_t columns_per_scale;  ///< of its inputs; 0: all
};

Coverage interpret(const WeightScope& scope, at::ScalarType values, at::IntArrayRef shape,
                   int64_t out, int64_t in) {
  const int64_t count = c10::multiply_integers(shape);
  const bool float8 = values == at::kFloat8_e4m3fn;
  if (values == at::kByte) {
    const bool groups = shape.size() == 2 && shape[0] == out && shape[1] > 0 && in % shape[1] == 0;
    const int64_t group = groups ? in / shape[1] : 0;
    if (group == 32 || group == 64 || group == 128) return {QuantType::kInt4WeightOnly, 1, group};
    fail<WeightError>(scope.place("weight"), "the scales of an int4 weight of ", out, " x ", in,
                      " must cover groups of 32, 64 or 128 inputs that divide them: got ", shape);
  }
  if (count == 1 && out != 1) {
    return {float8 ? QuantType::kFloat8PerTensor : QuantType::kInt8PerTensor, 0, 0};
  }
  if (count == out && !shape.empty() && shape.size() <= 2 && shape[0] == out) {
    return {float8 ? QuantType::kFloat8WeightOnly : QuantType::kInt8WeightOnly, 1, 0};
  }
  if (count == 1) return {float8 ? QuantType::kFloat8PerTensor : QuantType::kInt8PerTensor, 0, 0};
  if (float8 && shape.size() == 2 && shape[0] == divide_up(out, kFloat8Block) &&
      shape[1] == divide_up(in, kFloat8Block)) {
    return {QuantType::kFloat8PerBlock, kFloat8Block, kFloat8Block};
  }
  fail<WeightError>(scope.place("weight"), "the scale of a ", dtype_name(values), " weight of ",
                    out, " x ", in, " must be one number, one per output",
                    float8 ? ", or one per block of 128 x 128" : "", ": got ", shape);
}

/// The name of the scales in the file; null: there are none.
const char* find_scales(const WeightScope& scope) {
  for (const char* name : kScaleNames) {
    if (scope.stored_dtype(name)) return name;
  }
  return nullptr;
}

/// Zero is a scale: writers that divide by the largest magnitude give it to outputs whose weights
/// are all zero, and every value times it is zero, as it should be.
void check_scales(const at::Tensor& scales, const std::string& where) {
  if (scales.numel() == 0) return;
  const auto [least, most] = at::aminmax(scales);  // NaN if there is one
  const double low = least.item<double>(), high = most.item<double>();
  if (low >= 0 && std::isfinite(high)) return;
  const std::string bad = std::isnan(low) ? "nan" : c10::str(low < 0 ? low : high);
  fail<WeightError>(where, "scales must be finite and not negative: got ", bad, " among ",
                    scales.numel(),
                    "; the file is damaged or was made from such weights: take another copy, or "
                    "quantize the original checkpoint");
}

/// All scales, in the shape that LinearWeight has.
at::Tensor take_scales(const WeightScope& scope, const char* name, bool two_dimensions) {
  const at::ScalarType dtype = *scope.stored_dtype(name);
  if (!is_plain(dtype)) {
    // NVFP4 and MXFP4 have scales of 8 bits.
    fail<UnsupportedError>(scope.place(name), "scales must be fp32, bf16 or fp16: got ",
                           dtype_name(dtype), "; 4-bit floating-point checkpoints are not read");
  }
  const std::vector<int64_t> shape = scope.stored_shape(name);
  const at::Tensor scales = scope.take_stored(name, shape, -1, nullptr).to(at::kFloat);
  check_scales(scales, scope.place(name));
  return two_dimensions ? scales.view(shape).contiguous() : scales.reshape({-1}).contiguous();
}

/// A rule for a dimension that has an entry per `each` entries of the rule's own.
ShardRule rule_for_every(int64_t each, const ShardRule& rule) {
  ShardRule scaled = rule;
  for (int64_t& part : scaled.parts) part = divide_up(part, each);
  return scaled;
}

[[noreturn]] void refuse_dtype(const WeightScope& scope, at::ScalarType dtype) {
  fail<UnsupportedError>(scope.place("weight"),
                         "a linear layer's weight must be fp32, bf16, fp16, fp64, int8, "
                         "float8_e4m3fn or int4 in uint8: got ",
                         dtype_name(dtype),
                         dtype == at::kFloat8_e5m2 ? "; convert the checkpoint to float8_e4m3fn, "
                                                     "which has a bit more precision"
                                                   : "");
}

LinearWeight take_plain(const WeightScope& scope, int64_t out, int64_t in, const ShardRule* rule) {
  const int64_t dim = rule != nullptr && rule->shard == Shard::kRows ? 1 : 0;
  LinearWeight weight;
  weight.values = scope.take_stored("weight", {out, in}, rule == nullptr ? -1 : dim, rule);
  if (weight.values.is_meta()) return weight;
  weight.file = scope.take_stored("weight", {out, in}, -1, nullptr);
  weight.stored_bytes = static_cast<int64_t>(weight.values.nbytes());
  if (weight.values.scalar_type() == at::kDouble) weight.values = weight.values.to(at::kFloat);
  return weight;
}

LinearWeight take_quantized(const WeightScope& scope, at::ScalarType dtype, int64_t out,
                            int64_t in) {
  LinearWeight weight;
  const bool int4 = dtype == at::kByte;
  weight.values = scope.take_stored("weight", {out, int4 ? divide_up(in, 2) : in}, -1, nullptr);
  if (weight.values.is_meta()) return weight;
  weight.file = weight.values;
  const char* scales = find_scales(scope);
  if (scales == nullptr && dtype != at::kFloat8_e4m3fn) {
    fail<WeightError>(scope.place("weight"), "a weight of ", dtype_name(dtype),
                      " needs scales beside it (weight_scale or scale_weight): got none");
  }
  if (scales == nullptr) {
    weight.scales = at::ones({1}, at::kFloat);
    weight.stored = QuantType::kFloat8WeightOnly;
    return weight;
  }
  const Coverage covers = interpret(scope, dtype, scope.stored_shape(scales), out, in);
  weight.scales = take_scales(scope, scales, covers.columns_per_scale > 0);
  weight.stored = covers.type;
  return weight;
}

/// This rank's share of a whole quantized weight.
void take_share(LinearWeight& weight, int64_t out, int64_t in, const ShardRule& rule,
                const comm::Communicator& group) {
  const bool columns = rule.shard != Shard::kRows;  // of the outputs, in Megatron's words
  const int64_t dim = columns ? 0 : 1, size = columns ? out : in;
  const bool int4 = weight.values.scalar_type() == at::kByte;
  int64_t per_scale = 0;
  if (weight.scales.dim() == 2) {
    per_scale = int4 ? in / weight.scales.size(1) : kFloat8Block;
    if (int4 && columns) per_scale = 1;
  } else if (columns && weight.scales.numel() > 1) {
    per_scale = 1;
  }
  if (per_scale > 0 && !share_ends_between_scales(size, per_scale, rule, group.size())) {
    weight.values = share_of(dequantized(weight, at::kFloat), dim, rule, group);
    weight.scales = at::Tensor();
    weight.stored.reset();
    weight.unpacked = true;
    return;
  }
  weight.values =
      share_of(weight.values, dim, rule_for_every(int4 && !columns ? 2 : 1, rule), group);
  if (per_scale > 0) {
    weight.scales = share_of(weight.scales, dim, rule_for_every(per_scale, rule), group);
  }
}

}  // namespace

bool share_ends_between_scales(int64_t size, int64_t per_scale, const ShardRule& rule,
                               int64_t ranks) {
  std::vector<int64_t> parts = rule.parts;
  if (parts.empty()) parts.push_back(size);
  return std::all_of(parts.begin(), parts.end(), [&](int64_t part) {
    return part % ranks == 0 && part / ranks % per_scale == 0;
  });
}

LinearWeight take_linear_weight(const WeightScope& scope, int64_t out, int64_t in,
                                const ShardRule* rule) {
  for (const char* name : kInputScaleNames) {
    if (scope.stored_dtype(name)) scope.mark_used(name);
  }
  check_comfy_quant(scope);
  const auto dtype = scope.stored_dtype("weight");
  if (!dtype || is_plain(*dtype)) return take_plain(scope, out, in, rule);
  if (!weight_only_type(*dtype)) {
    refuse_dtype(scope, *dtype);
  }
  if (rule != nullptr) {
    scope.check_share("weight", rule->shard == Shard::kRows ? in : out, *rule);
  }
  LinearWeight weight = take_quantized(scope, *dtype, out, in);
  if (weight.values.is_meta()) return weight;
  if (rule != nullptr) take_share(weight, out, in, *rule, *scope.shard_group());
  const int64_t all = static_cast<int64_t>(weight.file.nbytes());
  weight.stored_bytes = rule != nullptr ? all / scope.shard_group()->size() : all;
  if (weight.quantized()) weight.stored_bytes += static_cast<int64_t>(weight.scales.nbytes());
  return weight;
}

at::Tensor dequantized(const LinearWeight& weight, at::ScalarType dtype) {
  if (!weight.quantized()) return weight.values.to(dtype);
  at::Tensor values = weight.values;
  const bool int4 = values.scalar_type() == at::kByte;
  if (int4) {
    const at::Tensor low = at::bitwise_and(values, 15).to(at::kChar);
    const at::Tensor high = values.__rshift__(4).to(at::kChar);
    const at::Tensor both = at::stack({low, high}, -1).flatten(-2);
    values = both - 16 * both.gt(7).to(at::kChar);  // two's complement of four bits
  }
  values = values.to(at::kFloat);
  at::Tensor scales = weight.scales;
  if (scales.dim() == 2) {
    const int64_t rows = int4 ? 1 : kFloat8Block;
    const int64_t columns = int4 ? values.size(1) / scales.size(1) : kFloat8Block;
    scales = scales.repeat_interleave(rows, 0).narrow(0, 0, values.size(0));
    scales = scales.repeat_interleave(columns, 1).narrow(1, 0, values.size(1));
  } else if (scales.numel() > 1) {
    scales = scales.unsqueeze(1);
  }
  return (values * scales).to(dtype);
}

}  // namespace cachedit::nn
