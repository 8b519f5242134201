#include "nn/linear_choice.h"

#include <algorithm>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "nn/linear_forms.h"
#include "nn/weight_quantizer.h"

namespace cachedit::nn {
namespace {

constexpr int64_t kMostInt8Inputs = 65536;  // sums of 32 bits

/// The type of values that the file already holds quantized: what was asked for, if they are of its
/// kind.
QuantType type_of_stored(const LinearWeight& weight, std::optional<QuantType> asked,
                         std::string& note) {
  const QuantType stored = weight_only_type(weight.values.scalar_type()).value();
  if (!asked || stored_kind(*asked) == stored_kind(stored)) return asked.value_or(stored);
  note = c10::str("stored as ", dtype_name(weight.values.scalar_type()), ", kept so");
  return stored;
}

/// Whether exact sums of that many int8 products fit; otherwise `note` says why not.
bool sums_fit(QuantType type, int64_t in, std::string& note) {
  const bool sums = type == QuantType::kInt8PerRow || type == QuantType::kInt8PerTensor;
  if (!sums || in <= kMostInt8Inputs) return true;
  note = c10::str("its ", in, " inputs pass the ", kMostInt8Inputs, " of int8 products");
  return false;
}

/// Whether a weight of that many inputs can be of the type; otherwise `note` says why not.
bool fits_inputs(QuantType type, int64_t in, int64_t group, std::string& note) {
  if (type == QuantType::kInt4WeightOnly && in % group != 0) {
    note = c10::str("its ", in, " inputs do not divide into groups of ", group);
    return false;
  }
  return sums_fit(type, in, note);
}

/// Entries of the shared dimension per scale, where shares must end between scales; 1: anywhere.
int64_t shared_scale(QuantType type, Shard shard, int64_t group) {
  if (type == QuantType::kFloat8PerBlock) return kFloat8Block;
  return type == QuantType::kInt4WeightOnly && shard == Shard::kRows ? group : 1;
}

/// The type for shares that do not end between its scales.
QuantType fallback_type(QuantType type) {
  if (type == QuantType::kFloat8PerBlock) return QuantType::kFloat8PerTensor;
  return type == QuantType::kInt4WeightOnly ? QuantType::kInt8WeightOnly : type;
}

/// The type that values of the file had, if they had to be unpacked.
std::optional<QuantType> unpacked_type(const LinearWeight& weight, std::optional<QuantType> asked) {
  if (!weight.unpacked) return std::nullopt;
  if (weight.file.scalar_type() == at::kByte) return QuantType::kInt4WeightOnly;
  const bool kept = asked && stored_kind(*asked) == StoredKind::kFloat8;
  return kept ? asked : QuantType::kFloat8WeightOnly;
}

/// Whether scales of a share differ from those of the whole.
bool scales_cover_more(QuantType type, Shard shard) {
  if (is_per_tensor(type)) return true;
  return shard == Shard::kRows && type != QuantType::kInt4WeightOnly &&
         type != QuantType::kFloat8PerBlock;
}

std::string does_not_end_between_scales(const WeightScope& scope, int64_t size, bool rows) {
  return c10::str("a share of 1 / ", scope.shard_group()->size(), " of its ", size,
                  rows ? " inputs" : " outputs", " does not end between two scales");
}

/// float8_per_block of a stored weight that has one scale: all of a small weight is one block, and
/// shares are those of a weight that is quantized at load.
void choose_for_one_scale(ChosenWeight& chosen, const WeightScope& scope, int64_t out, int64_t in,
                          const ShardRule* rule) {
  const bool one_block = std::max(out, in) <= kFloat8Block;
  const bool rows = rule != nullptr && rule->shard == Shard::kRows;
  if (rule != nullptr && (one_block || rows) &&
      !share_ends_between_scales(rows ? in : out, kFloat8Block, *rule,
                                 scope.shard_group()->size())) {
    chosen.note = does_not_end_between_scales(scope, rows ? in : out, rows);
    chosen.type = scope.options().quantization.per_tensor_fallback ? QuantType::kFloat8PerTensor
                                                                   : QuantType::kFloat8WeightOnly;
  } else if (one_block) {
    chosen.weight.scales = chosen.weight.scales.view({1, 1});
  }
}

/// This rank's share of the quantized whole.
LinearWeight quantized_share(const WeightScope& scope, const LinearWeight& share, int64_t out,
                             int64_t in, const ShardRule& rule, QuantType type, int64_t group) {
  const LinearWeight all = take_linear_weight(scope, out, in, nullptr);
  LinearWeight whole = all;
  whole.values = dequantized(all, all.quantized() ? at::kFloat : all.values.scalar_type());
  whole = quantized(whole, type, group);
  LinearWeight result = share;
  const bool rows = rule.shard == Shard::kRows;
  result.values = share_of(whole.values, rows ? 1 : 0, rule, *scope.shard_group());
  result.scales = rows || whole.scales.numel() == 1
                      ? whole.scales
                      : share_of(whole.scales, 0, rule, *scope.shard_group());
  result.stored = type;
  return result;
}

}  // namespace

ChosenWeight choose_weight(const WeightScope& scope, int64_t out, int64_t in, const ShardRule* rule,
                           at::ScalarType dtype) {
  const QuantizationPlan& plan = scope.options().quantization;
  const QuantizationRule asked = plan.rule_for(scope.layer());
  ChosenWeight chosen{.weight = take_linear_weight(scope, out, in, rule)};
  LinearWeight& weight = chosen.weight;
  if (weight.values.is_meta()) return chosen;
  chosen.note = asked.reason;
  const bool stored = weight.quantized() || weight.unpacked;
  if (!has_packed_form(scope.device(), dtype)) {
    if (asked.type || stored) chosen.note = "computed unquantized: the kernels are for CPUs";
    return chosen;
  }
  if (weight.quantized()) {
    chosen.type = type_of_stored(weight, asked.type, chosen.note);
    if (!sums_fit(*chosen.type, in, chosen.note)) chosen.type = QuantType::kInt8WeightOnly;
    if (chosen.type == QuantType::kFloat8PerBlock && weight.scales.numel() == 1) {
      choose_for_one_scale(chosen, scope, out, in, rule);
    }
    return chosen;
  }
  std::optional<QuantType> type = weight.unpacked ? unpacked_type(weight, asked.type) : asked.type;
  if (!type) return chosen;
  const int64_t group = plan.group_size;
  if (!weight.unpacked && !fits_inputs(*type, in, group, chosen.note)) return chosen;
  const bool rows = rule != nullptr && rule->shard == Shard::kRows;
  const int64_t each = rule != nullptr ? shared_scale(*type, rule->shard, group) : 1;
  if (weight.unpacked ||
      (rule != nullptr &&
       !share_ends_between_scales(rows ? in : out, each, *rule, scope.shard_group()->size()))) {
    chosen.note = does_not_end_between_scales(scope, rows ? in : out, rows);
    if (!plan.per_tensor_fallback) return chosen;
    type = fallback_type(*type);
  }
  chosen.type = type;
  if (!weight.unpacked && !scope.options().list_only) {  // a list reads headers only
    check_finite(weight.values, scope.place("weight"));
  }
  if (rule != nullptr && (weight.unpacked || scales_cover_more(*type, rule->shard))) {
    weight = quantized_share(scope, weight, out, in, *rule, *type, group);
  }
  return chosen;
}

}  // namespace cachedit::nn
