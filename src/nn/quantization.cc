#include "nn/quantization.h"

#include "base/fail.h"

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

/// Whether `pattern`, in which "*" stands for any characters, is all of `text`.
bool fits(std::string_view pattern, std::string_view text) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t skip = star; skip <= text.size(); ++skip) {
    if (fits(rest, text.substr(skip))) return true;
  }
  return false;
}

}  // namespace

const char* name_of(QuantType type) {
  for (const TypeName& known : kNames) {
    if (known.type == type) return known.name;
  }
  return "unknown";
}

std::string quant_type_names() {
  std::string names;
  for (const TypeName& known : kNames)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

QuantType parse_quant_type(const std::string& name, const std::string& where) {
  for (const TypeName& known : kNames) {
    if (name == known.name) return known.type;
  }
  if (name.starts_with("svdq") || name.starts_with("nvfp4")) {
    fail<UnsupportedError>(where, "SVDQuant and NVFP4 are not part of this version: got '", name,
                           "'; use ", quant_type_names());
  }
  fail<ConfigError>(where, "unknown quantize type: got '", name, "'; use ", quant_type_names());
}

std::optional<QuantType> QuantizationPlan::type_of(std::string_view layer) const {
  for (const QuantizationRule& rule : rules) {
    if (fits(rule.layers, layer)) return rule.type;
  }
  return type;
}

}  // namespace cachedit::nn
