#include "pipelines/quantize_choice.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "base/log.h"
#include "pipelines/quantize_file.h"
#include "pipelines/quantize_yaml.h"

namespace cachedit {
namespace pipelines {
namespace {

constexpr const char* kWhere = "quantize_config";
constexpr const char* kNone = "none";
constexpr std::string_view kComponents[] = {"transformer", "text_encoder", "text_encoder_2"};
/// A transformer's repeated blocks; other components have none.
constexpr std::string_view kBlocks[] = {"transformer_blocks.", "single_transformer_blocks."};

std::optional<nn::QuantType> type_of(const std::string& name, const std::string& where = kWhere) {
  if (nn::lower_case(name) == kNone) return std::nullopt;
  return nn::parse_quant_type(name, where);
}

void check_fields(const std::string& type, const std::vector<std::string>& excluded,
                  const std::map<std::string, std::string>& plan, const std::string& where) {
  type_of(type, where);
  for (const std::string& pattern : excluded) {
    if (pattern.empty()) fail<ConfigError>(where, "exclude_layers must name layers: got ''");
  }
  for (const auto& [layers, planned] : plan) {
    if (layers.empty()) fail<ConfigError>(where, "precision_plan must name layers: got ''");
    type_of(planned, where);
  }
}

/// Names of the two-dimensional weights, which are the linear layers and a few tables.
std::vector<std::string> layers_of(const io::WeightStore& store) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> layers;
  for (const std::string& name : store.names()) {
    if (!name.ends_with(kWeight) || store.entry(name).shape.size() != 2) continue;
    layers.push_back(name.substr(0, name.size() - kWeight.size()));
  }
  return layers;
}

/// Without the prefix that some versions write, whose letters a pattern could be meant for.
std::string_view plain_name(std::string_view layer) {
  constexpr std::string_view kPrefix = "text_model.";
  return layer.starts_with(kPrefix) ? layer.substr(kPrefix.size()) : layer;
}

bool contains(std::string_view layer, const std::string& pattern) {
  return nn::fits_pattern("*" + pattern + "*", layer);
}

/// Whether the name lies outside of the component's repeated blocks.
bool is_outside(std::string_view layer, const std::string& component) {
  return component == kComponents[0] &&
         std::none_of(std::begin(kBlocks), std::end(kBlocks),
                      [&](std::string_view block) { return layer.starts_with(block); });
}

/// The rule for one layer by `config`.
nn::QuantizationRule rule_of(const QuantizeConfig& config, const std::string& component,
                             const std::string& layer) {
  const std::string_view name = plain_name(layer);
  nn::QuantizationRule rule{.layers = layer};
  std::string excluded, planned;
  for (const std::string& pattern : config.exclude_layers) {
    if (excluded.empty() && contains(name, pattern)) excluded = pattern;
  }
  for (const auto& [pattern, type] : config.precision_plan) {
    if (!contains(name, pattern)) continue;
    if (planned.empty() || pattern.size() > planned.size()) planned = pattern;
  }
  if (config.regional_quantize && is_outside(name, component)) {
    rule.reason = "outside of the blocks";
  } else if (!excluded.empty()) {
    rule.reason = "excluded by '" + excluded + "'";
  } else if (!planned.empty()) {
    rule.type = type_of(config.precision_plan.at(planned));
    if (!rule.type) rule.reason = "none by the precision_plan";
  } else {
    rule.type = type_of(config.quant_type);
    if (!rule.type) rule.reason = "not in the precision_plan";
  }
  return rule;
}

/// Whether the file holds the layer's weight quantized.
bool is_quantized(const io::WeightStore& store, const std::string& layer) {
  return nn::weight_only_type(store.entry(layer + ".weight").dtype).has_value();
}

/// Whether `config`, which is that of one component, gives the type to any layer.
bool gives(const QuantizeConfig& config, nn::QuantType type) {
  return type_of(config.quant_type) == type ||
         std::any_of(config.precision_plan.begin(), config.precision_plan.end(),
                     [&](const auto& planned) { return type_of(planned.second) == type; });
}

/// The default is not told from the same size given.
void warn_of_unused_group_size(const QuantizeConfig& config) {
  if (config.group_size == QuantizeConfig().group_size) return;
  const bool used =
      std::any_of(std::begin(kComponents), std::end(kComponents), [&](std::string_view component) {
        const auto own = config_of(config, std::string(component));
        return own && gives(*own, nn::QuantType::kInt4WeightOnly);
      });
  if (used) return;
  log_warning(c10::str("[quantize] group_size ", config.group_size,
                       " has no effect: no layer is asked to be int4_weight_only"));
}

/// The patterns of one field, and the components that it is for: one that has its own, or all that
/// do not.
struct Patterns {
  std::vector<std::string> unmet;
  std::string components;

  void meet(const std::string& component, const std::vector<std::string>& layers) {
    components += (components.empty() ? "" : ", ") + component;
    const auto named = [&](const std::string& pattern) {
      return std::any_of(layers.begin(), layers.end(), [&](const std::string& layer) {
        return contains(plain_name(layer), pattern);
      });
    };
    unmet.erase(std::remove_if(unmet.begin(), unmet.end(), named), unmet.end());
  }
};

/// Without the defaults, which are meant for many models.
std::vector<std::string> given_patterns(const std::vector<std::string>& excluded) {
  const std::vector<std::string> defaults = QuantizeConfig().exclude_layers;
  std::vector<std::string> given;
  for (const std::string& pattern : excluded) {
    if (std::find(defaults.begin(), defaults.end(), pattern) == defaults.end()) {
      given.push_back(pattern);
    }
  }
  return given;
}

std::vector<std::string> keys_of(const std::map<std::string, std::string>& plan) {
  std::vector<std::string> keys;
  for (const auto& [pattern, type] : plan) keys.push_back(pattern);
  return keys;
}

}  // namespace

std::optional<QuantizeConfig> config_of(const QuantizeConfig& config,
                                        const std::string& component) {
  QuantizeConfig own = config;
  own.components_to_quantize.clear();
  if (config.components_to_quantize.empty()) {
    return component == kComponents[0] ? std::optional(own) : std::nullopt;
  }
  const auto found = config.components_to_quantize.find(component);
  if (found == config.components_to_quantize.end()) return std::nullopt;
  const ComponentQuantizeConfig& c = found->second;
  own.quant_type = c.quant_type.value_or(own.quant_type);
  own.exclude_layers = c.exclude_layers.value_or(own.exclude_layers);
  own.regional_quantize = c.regional_quantize.value_or(own.regional_quantize);
  own.precision_plan = c.precision_plan.value_or(own.precision_plan);
  own.per_tensor_fallback = c.per_tensor_fallback.value_or(own.per_tensor_fallback);
  return own;
}

QuantizeConfig in_small_letters(QuantizeConfig config) {
  const auto change = [](std::string& type) { type = nn::lower_case(std::move(type)); };
  const auto change_all = [&](std::map<std::string, std::string>& plan) {
    for (auto& [layers, type] : plan) change(type);
  };
  change(config.quant_type);
  change_all(config.precision_plan);
  for (auto& [component, own] : config.components_to_quantize) {
    if (own.quant_type) change(*own.quant_type);
    if (own.precision_plan) change_all(*own.precision_plan);
  }
  return config;
}

QuantizeChoice::QuantizeChoice(std::optional<QuantizeConfig> config, at::Device device) {
  if (!config) return;
  config_ = in_small_letters(std::move(*config));
  check_quantize_config(*config_, kWhere);
  warn_of_unused_group_size(*config_);
  if (!device.is_cpu()) {
    fail<UnsupportedError>("quantize", "quantized layers are computed on CPUs only: got ",
                           device.str());
  }
}

nn::QuantizationPlan QuantizeChoice::plan(const std::string& component,
                                          const io::WeightStore& store) const {
  nn::QuantizationPlan plan;
  const StoredQuantization stored = read_stored_quantization(store);
  plan.group_size = stored.group_size;
  std::optional<QuantizeConfig> config;
  if (config_) config = config_of(*config_, component);
  if (config) {
    plan.group_size = config->group_size;
    plan.per_tensor_fallback = config->per_tensor_fallback;
    for (const std::string& layer : layers_of(store)) {
      nn::QuantizationRule rule = rule_of(*config, component, layer);
      if (!rule.type && is_quantized(store, layer)) rule.reason.insert(0, kInFile);
      plan.rules.push_back(std::move(rule));
    }
  }
  for (const auto& entry : stored.layers) {
    const std::string& layer = entry.first;
    const nn::QuantType type = entry.second;
    // The file's numbers stay; another type of the same numbers is a matter of the activations.
    const auto own = std::find_if(plan.rules.begin(), plan.rules.end(),
                                  [&](const auto& rule) { return rule.layers == layer; });
    if (own == plan.rules.end()) {
      plan.rules.push_back({.layers = layer, .type = type});
    } else if (!own->type) {
      *own = {.layers = layer, .type = type, .reason = own->reason};
    } else if (nn::stored_kind(*own->type) != nn::stored_kind(type)) {
      *own = {.layers = layer,
              .type = type,
              .reason = c10::str("stored as ", nn::name_of(type), ", kept so")};
    }
  }
  return plan;
}

void QuantizeChoice::warn_of_unmet(
    const std::map<std::string, const io::WeightStore*>& stores) const {
  if (!config_) return;
  std::map<std::pair<std::string, std::string>, Patterns> fields;  // by owner and field
  for (const auto& [component, store] : stores) {
    const std::optional<QuantizeConfig> config = config_of(*config_, component);
    if (!config) continue;
    const auto found = config_->components_to_quantize.find(component);
    const ComponentQuantizeConfig own =
        found == config_->components_to_quantize.end() ? ComponentQuantizeConfig() : found->second;
    const std::vector<std::string> layers = layers_of(*store);
    const auto meet = [&](const char* field, bool is_own, std::vector<std::string> patterns) {
      fields.try_emplace({is_own ? component : "", field}, Patterns{std::move(patterns), {}})
          .first->second.meet(component, layers);
    };
    meet("exclude_layers", own.exclude_layers.has_value(), given_patterns(config->exclude_layers));
    meet("precision_plan", own.precision_plan.has_value(), keys_of(config->precision_plan));
  }
  for (const auto& [owner_and_field, patterns] : fields) {
    for (const std::string& pattern : patterns.unmet) {
      log_warning(c10::str("[quantize] ", owner_and_field.second, ": '", pattern,
                           "' is in no layer's name of ", patterns.components));
    }
  }
}

bool QuantizeChoice::names(const std::string& component) const {
  return config_ && config_of(*config_, component);
}

std::string QuantizeChoice::text() const { return quantize_text(config_); }

void QuantizeRecord::listen(nn::WeightOptions& options) {
  options.on_linear_layer = [this](const nn::QuantizedLayer& layer) {
    result_.layers.push_back({.layer = layer.layer,
                              .type = layer.type ? nn::name_of(*layer.type) : "",
                              .note = layer.note});
    result_.stored_bytes += layer.stored_bytes;
    result_.bytes += layer.bytes;
  };
}

void check_group_size(int64_t size, const std::string& where) {
  if (size != 32 && size != 64 && size != 128) {
    fail<ConfigError>(where, "group_size must be 32, 64 or 128: got ", size);
  }
}

void check_quantize_config(const QuantizeConfig& config, const std::string& where) {
  check_fields(config.quant_type, config.exclude_layers, config.precision_plan, where);
  check_group_size(config.group_size, where);
  for (const auto& [component, own] : config.components_to_quantize) {
    if (std::find(std::begin(kComponents), std::end(kComponents), component) ==
        std::end(kComponents)) {
      fail<ConfigError>(where, "components_to_quantize may name transformer, text_encoder and ",
                        "text_encoder_2: got '", component, "'");
    }
    check_fields(own.quant_type.value_or(config.quant_type),
                 own.exclude_layers.value_or(config.exclude_layers),
                 own.precision_plan.value_or(config.precision_plan),
                 c10::str(where, " components_to_quantize ", component));
  }
}

}  // namespace pipelines

void check_quantize_config(const QuantizeConfig& config) {
  pipelines::check_quantize_config(config, pipelines::kWhere);
}

}  // namespace cachedit
