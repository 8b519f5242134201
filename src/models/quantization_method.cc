#include "models/quantization_method.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/fail.h"

namespace cachedit::models {
namespace {

/// Of compressed-tensors: those with "weight" and "weight_scale".
constexpr std::string_view kFormats[] = {"float-quantized", "naive-quantized", "int-quantized"};

}  // namespace

void check_quantization_method(io::JsonConfig& json) {
  std::optional<io::JsonConfig> config = json.find_object("quantization_config");
  if (!config) return;
  const auto method = config->get_or<std::string>("quant_method", "");
  if (method == "fp8") return;
  const auto format = config->get_or<std::string>("format", "");
  const bool known =
      std::find(std::begin(kFormats), std::end(kFormats), format) != std::end(kFormats);
  if (method == "compressed-tensors" && known) return;
  fail<UnsupportedError>(
      json.where(), "the weights must be plain, float8 or int8 with scales, or written by ",
      "`cachedit quantize`: got quantization_config with quant_method '", method, "'",
      format.empty() ? "" : " and format '" + format + "'",
      "; take the original checkpoint and add --quantize-type, or quantize it with ",
      "`cachedit quantize`");
}

}  // namespace cachedit::models
