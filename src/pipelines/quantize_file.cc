#include "pipelines/quantize_file.h"

#include "base/dtype_name.h"
#include "base/fail.h"
#include "base/log.h"
#include "io/json_config.h"
#include "io/json_text.h"
#include "pipelines/quantize_choice.h"

namespace cachedit::pipelines {
namespace {

constexpr const char* kMethod = "cachedit";

/// Otherwise a layer would be quantized at load that nobody asked to be.
void check_weight(const io::WeightStore& store, const std::string& layer, nn::QuantType type,
                  const std::string& where) {
  constexpr const char* kAdvice =
      "; the file belongs to other weights: remove it, or take the folder whole from its source";
  const std::string name = layer + ".weight";
  if (!store.contains(name)) {
    fail<ConfigError>(where, "no weight of the layer '", layer, "' is in the folder", kAdvice);
  }
  const at::ScalarType values = store.entry(name).dtype;
  const std::optional<nn::QuantType> stored = nn::weight_only_type(values);
  if (stored && nn::stored_kind(*stored) == nn::stored_kind(type)) return;
  fail<ConfigError>(where, "layer '", layer, "' is said to be ", nn::name_of(type),
                    ": got a weight of ", dtype_name(values), kAdvice);
}

}  // namespace

StoredQuantization read_stored_quantization(const io::WeightStore& store) {
  StoredQuantization stored;
  const std::filesystem::path path = store.folder() / kQuantizationFile;
  if (!std::filesystem::exists(path)) return stored;
  const nlohmann::json json = io::read_json_file(path);
  const std::string where = path.string();
  io::JsonConfig config(json, where);
  stored.found = true;
  const std::string method = config.get_or<std::string>("quant_method", "");
  if (method != kMethod) {
    log_warning(c10::str("[", where, "] quant_method '", method,
                         "' is not known: the types of the stored weights decide"));
    return stored;
  }
  stored.group_size = config.get_or<int64_t>("group_size", stored.group_size);
  check_group_size(stored.group_size, where);
  const nlohmann::json layers = json.value("layers", nlohmann::json());
  if (!layers.is_object()) {
    fail<ConfigError>(where, "\"layers\" must map layers to types: got ", io::show_json(layers));
  }
  for (const auto& [layer, type] : layers.items()) {
    if (!type.is_string()) {
      fail<ConfigError>(where, "layer '", layer, "' must have a type: got ", io::show_json(type));
    }
    const nn::QuantType parsed = nn::parse_quant_type(type.get<std::string>(), where);
    check_weight(store, layer, parsed, where);
    stored.layers[layer] = parsed;
  }
  return stored;
}

std::string stored_quantization_text(const QuantizeConfig& config,
                                     const ComponentQuantization& component) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::object();
  nlohmann::ordered_json others = nlohmann::ordered_json::object();
  for (const LayerQuantization& layer : component.layers) {
    if (layer.type.empty()) {
      others[layer.layer] = layer.note;
    } else {
      layers[layer.layer] = layer.type;
    }
  }
  const nlohmann::ordered_json json = {{"quant_method", kMethod},
                                       {"quant_type", config.quant_type},
                                       {"group_size", config.group_size},
                                       {"exclude_layers", config.exclude_layers},
                                       {"regional_quantize", config.regional_quantize},
                                       {"precision_plan", config.precision_plan},
                                       {"layers", layers},
                                       {"excluded", others}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace cachedit::pipelines
