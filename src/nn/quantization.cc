#include "nn/quantization.h"

#include <vector>

#include "base/fail.h"
#include "base/nearest_name.h"

namespace cachedit::nn {
namespace {

struct TypeName {
  QuantType type;
  const char* name;
};

constexpr TypeName kNames[] = {{QuantType::kInt8PerRow, "int8_per_row"},
                               {QuantType::kInt8PerTensor, "int8_per_tensor"},
                               {QuantType::kInt8WeightOnly, "int8_weight_only"},
                               {QuantType::kInt4WeightOnly, "int4_weight_only"},
                               {QuantType::kFloat8PerRow, "float8_per_row"},
                               {QuantType::kFloat8PerTensor, "float8_per_tensor"},
                               {QuantType::kFloat8PerBlock, "float8_per_block"},
                               {QuantType::kFloat8WeightOnly, "float8_weight_only"}};

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const TypeName& known : kNames) names.emplace_back(known.name);
  return names;
}

}  // namespace

const char* name_of(QuantType type) {
  for (const TypeName& known : kNames) {
    if (known.type == type) return known.name;
  }
  return "unknown";
}

std::string quant_type_names() { return c10::Join(", ", all_names()); }

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

QuantType parse_quant_type(const std::string& given, const std::string& where) {
  const std::string name = lower_case(given);
  for (const TypeName& known : kNames) {
    if (name == known.name) return known.type;
  }
  if (name.starts_with("svdq") || name.starts_with("nvfp4")) {
    fail<UnsupportedError>(where, "SVDQuant and NVFP4 come with a later version: got '", given,
                           "'; use ", quant_type_names());
  }
  const std::optional<std::string> meant = likely_name(name, all_names());
  fail<ConfigError>(where, "unknown quantize type: got '", given, "'; ",
                    meant ? "did you mean '" + *meant + "'? Known are " : "use ",
                    quant_type_names());
}

StoredKind stored_kind(QuantType type) {
  switch (type) {
    case QuantType::kInt8PerRow:
    case QuantType::kInt8PerTensor:
    case QuantType::kInt8WeightOnly:
      return StoredKind::kInt8;
    case QuantType::kInt4WeightOnly:
      return StoredKind::kInt4;
    case QuantType::kFloat8PerRow:
    case QuantType::kFloat8PerTensor:
    case QuantType::kFloat8PerBlock:
    case QuantType::kFloat8WeightOnly:
      break;
  }
  return StoredKind::kFloat8;
}

std::optional<QuantType> weight_only_type(c10::ScalarType values) {
  if (values == c10::kChar) return QuantType::kInt8WeightOnly;
  if (values == c10::kByte) return QuantType::kInt4WeightOnly;
  if (values == c10::kFloat8_e4m3fn) return QuantType::kFloat8WeightOnly;
  return std::nullopt;
}

bool is_per_tensor(QuantType type) {
  return type == QuantType::kInt8PerTensor || type == QuantType::kFloat8PerTensor;
}

bool fits_pattern(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  if (rest.empty()) return true;
  for (size_t skip = star; skip <= text.size(); ++skip) {
    if (fits_pattern(rest, text.substr(skip))) return true;
  }
  return false;
}

QuantizationRule QuantizationPlan::rule_for(std::string_view layer) const {
  for (const QuantizationRule& rule : rules) {
    if (fits_pattern(rule.layers, layer)) return rule;
  }
  return {.layers = std::string(layer), .type = type};
}

}  // namespace cachedit::nn
