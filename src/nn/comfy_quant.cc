#include "nn/comfy_quant.h"

#include "base/dtype_name.h"
#include "base/fail.h"
#include "io/json_config.h"
#include "io/json_text.h"

namespace cachedit::nn {
namespace {

constexpr const char* kTensor = "comfy_quant";
constexpr const char* kMetadata = "_quantization_metadata";
constexpr int64_t kMostBytes = 1 << 16;  // real ones have less than 100

/// Formats whose weight is the stored number times "weight_scale"; what scales cover is in their
/// shape.
struct Format {
  const char* name;
  at::ScalarType values;
};
constexpr Format kFormats[] = {{"float8_e4m3fn", at::kFloat8_e4m3fn},
                               {"float8_e4m3fn_rowwise", at::kFloat8_e4m3fn},
                               {"float8_e4m3fn_blockwise", at::kFloat8_e4m3fn},
                               {"int8_tensorwise", at::kChar}};

std::string format_names() {
  std::string names;
  for (const Format& known : kFormats)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

const Format& find_format(const std::string& name, const std::string& where) {
  for (const Format& known : kFormats) {
    if (name == known.name) return known;
  }
  fail<UnsupportedError>(where, "the weight's format must be one of ", format_names(), ": got '",
                         name, "'; take the checkpoint in bf16 or in one of these");
}

void check_text(const std::string& text, const std::string& where,
                std::optional<at::ScalarType> weight) {
  io::JsonConfig config(io::parse_json(text, where), where);
  const Format& format = find_format(config.get<std::string>("format"), where);
  if (config.get_or<bool>("convrot", false)) {
    fail<UnsupportedError>(where,
                           "weights must not be rotated: got convrot = true, which needs "
                           "activations rotated likewise; take a checkpoint without");
  }
  // How the activations are rounded, and what the scale's shape says as well.
  config.ignore({"full_precision_matrix_mult", "convrot_groupsize", "per_row", "group_size",
                 "orig_dtype", "orig_shape"});
  config.finish();
  if (weight && *weight != format.values) {
    fail<WeightError>(where, "a weight of the format ", format.name, " must be ",
                      dtype_name(format.values), ": got ", dtype_name(*weight),
                      "; take another copy of the checkpoint");
  }
}

}  // namespace

std::map<std::string, std::string> described_layers(const io::WeightStore& store) {
  std::map<std::string, std::string> described;
  for (const io::SafetensorsFile& file : store.files()) {
    const auto found = file.header().metadata.find(kMetadata);
    if (found == file.header().metadata.end()) continue;
    const std::string where = c10::str(file.path().string(), " ", kMetadata);
    const nlohmann::json json = io::parse_json(found->second, where);
    const nlohmann::json layers =
        json.is_object() ? json.value("layers", nlohmann::json()) : nlohmann::json();
    if (!layers.is_object()) {
      fail<ConfigError>(where, "\"layers\" must map layers to formats: got ",
                        io::show_json(json.is_object() ? layers : json));
    }
    for (const auto& [layer, format] : layers.items()) described[layer] = format.dump();
  }
  return described;
}

void check_comfy_quant(const WeightScope& scope) {
  const auto weight = scope.stored_dtype("weight");
  if (const std::string* text = scope.description()) {
    check_text(*text, c10::str(scope.layer(), " in ", kMetadata), weight);
  }
  const auto dtype = scope.stored_dtype(kTensor);
  if (!dtype) return;
  const std::string where = scope.place(kTensor);
  const std::vector<int64_t> shape = scope.stored_shape(kTensor);
  if (*dtype != at::kByte || c10::multiply_integers(shape) > kMostBytes) {
    fail<WeightError>(where, "the tensor must be JSON in at most ", kMostBytes, " bytes: got ",
                      dtype_name(*dtype), " ", at::IntArrayRef(shape));
  }
  const at::Tensor bytes = scope.take_stored(kTensor, shape, -1, nullptr);
  check_text(
      std::string(bytes.const_data_ptr<uint8_t>(), bytes.const_data_ptr<uint8_t>() + bytes.numel()),
      where, weight);
}

}  // namespace cachedit::nn
