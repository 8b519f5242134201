#include "pipelines/quantize_yaml.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/fail.h"
#include "io/json_config.h"
#include "io/json_text.h"
#include "io/yaml_file.h"
#include "pipelines/config_keys.h"
#include "pipelines/quantize_choice.h"

namespace cachedit::pipelines {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

/// Keys of the section and of a component's part of it.
const Names& own_keys() {
  static const Names names = {"quant_type", "exclude_layers", "regional_quantize",
                              "per_tensor_fallback", "precision_plan"};
  return names;
}

/// Settings of Python objects and of types that come with later versions; they may be left empty.
const Names& foreign_keys() {
  static const Names names = {"repeated_blocks", "filter_fn", "calibrate_fn", "serialize_to",
                              "svdq_kwargs"};
  return names;
}

void refuse_foreign(const json& object, const std::string& where) {
  for (const std::string& key : foreign_keys()) {
    const json value = object.value(key, json());
    if (value.is_null() || (value.is_structured() && value.empty()) || value == "") continue;
    fail<ConfigError>(where, key, " has no meaning here and must be left out: got ",
                      io::show_json(value));
  }
  const json backend = object.value("backend", json());
  static const std::set<std::string> accepted = {"auto", "ao",        "torchao",  "none",
                                                 "AUTO", "cache_dit", "cachedit", "TORCHAO"};
  if (backend.is_null()) return;
  if (backend.is_string() && accepted.count(backend.get<std::string>()) != 0) return;
  fail<ConfigError>(where, "backend must be auto or left out: got ", io::show_json(backend));
}

std::map<std::string, std::string> read_plan(const json& object, const std::string& where) {
  std::map<std::string, std::string> plan;
  if (!object.is_object()) {
    fail<ConfigError>(where, "precision_plan must map layers to types: got ",
                      io::show_json(object));
  }
  for (const auto& [layers, type] : object.items()) {
    if (!type.is_string() && !type.is_null()) {
      fail<ConfigError>(where, "precision_plan: '", layers, "' must have a type: got ",
                        io::show_json(type));
    }
    plan[layers] = type.is_null() ? "none" : type.get<std::string>();
  }
  return plan;
}

/// The fields of own_keys() that `object` has.
ComponentQuantizeConfig read_own(const json& object, const std::string& where) {
  io::JsonConfig config(object, where);
  ComponentQuantizeConfig own;
  own.quant_type = config.find<std::string>("quant_type");
  own.exclude_layers = config.find<std::vector<std::string>>("exclude_layers");
  own.regional_quantize = config.find<bool>("regional_quantize");
  own.per_tensor_fallback = config.find<bool>("per_tensor_fallback");
  const json plan = object.value("precision_plan", json());
  if (!plan.is_null()) own.precision_plan = read_plan(plan, where);
  return own;
}

std::map<std::string, ComponentQuantizeConfig> read_components(const json& value,
                                                               const std::string& where) {
  std::map<std::string, ComponentQuantizeConfig> components;
  if (value.is_array()) {
    for (const json& name : value) {
      if (!name.is_string()) {
        fail<ConfigError>(where, "components_to_quantize must hold names: got ",
                          io::show_json(name));
      }
      components[name.get<std::string>()] = {};
    }
    return components;
  }
  if (!value.is_object()) {
    fail<ConfigError>(where,
                      "components_to_quantize must be a list, or map names to settings: ", "got ",
                      io::show_json(value));
  }
  Names known = own_keys();
  known.insert(known.end(), {"backend", "verbose"});
  known.insert(known.end(), foreign_keys().begin(), foreign_keys().end());
  for (const auto& [name, object] : value.items()) {
    const std::string place = where + " components_to_quantize " + name;
    check_keys(object, known, place);
    refuse_foreign(object, place);
    components[name] = read_own(object, place);
  }
  return components;
}

std::string list_text(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + io::yaml_text(name);
  return "[" + list + "]";
}

std::string plan_text(const std::map<std::string, std::string>& plan) {
  std::string text;
  for (const auto& [layers, type] : plan) {
    text += (text.empty() ? "" : ", ") + io::yaml_text(layers) + ": " + io::yaml_text(type);
  }
  return "{" + text + "}";
}

const char* word(bool value) { return value ? "true" : "false"; }

/// A component's settings in one line.
std::string own_text(const ComponentQuantizeConfig& own) {
  Names parts;
  if (own.quant_type) parts.push_back("quant_type: " + io::yaml_text(*own.quant_type));
  if (own.exclude_layers) parts.push_back("exclude_layers: " + list_text(*own.exclude_layers));
  if (own.regional_quantize) {
    parts.push_back(std::string("regional_quantize: ") + word(*own.regional_quantize));
  }
  if (own.per_tensor_fallback) {
    parts.push_back(std::string("per_tensor_fallback: ") + word(*own.per_tensor_fallback));
  }
  if (own.precision_plan) parts.push_back("precision_plan: " + plan_text(*own.precision_plan));
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return "{" + text + "}";
}

}  // namespace

QuantizeConfig read_quantize_config(const json& object, const std::string& where) {
  Names known = own_keys();
  known.insert(known.end(), {"components_to_quantize", "group_size", "backend", "verbose"});
  known.insert(known.end(), foreign_keys().begin(), foreign_keys().end());
  check_keys(object, known, where);
  refuse_foreign(object, where);
  const ComponentQuantizeConfig own = read_own(object, where);
  QuantizeConfig config;
  config.quant_type = own.quant_type.value_or(config.quant_type);
  config.exclude_layers = own.exclude_layers.value_or(config.exclude_layers);
  config.regional_quantize = own.regional_quantize.value_or(config.regional_quantize);
  config.per_tensor_fallback = own.per_tensor_fallback.value_or(config.per_tensor_fallback);
  config.precision_plan = own.precision_plan.value_or(config.precision_plan);
  io::JsonConfig rest(object, where);
  config.group_size = rest.get_or<int64_t>("group_size", config.group_size);
  rest.get_or<bool>("verbose", false);  // the summary always says everything
  const json components = object.value("components_to_quantize", json());
  if (!components.is_null()) config.components_to_quantize = read_components(components, where);
  check_quantize_config(config, where);
  return in_small_letters(std::move(config));
}

std::string quantize_text(const std::optional<QuantizeConfig>& config) {
  if (!config) return {};
  const QuantizeConfig defaults;
  std::string text = "quantize_config:\n";
  const auto add = [&](const char* key, const std::string& value) {
    text += std::string("  ") + key + ": " + value + "\n";
  };
  add("quant_type", io::yaml_text(config->quant_type));
  if (config->exclude_layers != defaults.exclude_layers) {
    add("exclude_layers", list_text(config->exclude_layers));
  }
  if (!config->regional_quantize) add("regional_quantize", "false");
  if (!config->precision_plan.empty()) add("precision_plan", plan_text(config->precision_plan));
  if (!config->per_tensor_fallback) add("per_tensor_fallback", "false");
  if (config->group_size != defaults.group_size) {
    add("group_size", std::to_string(config->group_size));
  }
  if (config->components_to_quantize.empty()) return text;
  text += "  components_to_quantize:\n";
  for (const auto& [name, own] : config->components_to_quantize) {
    text += "    " + io::yaml_text(name) + ": " + own_text(own) + "\n";
  }
  return text;
}

}  // namespace cachedit::pipelines
