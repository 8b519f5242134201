#include "quantize_options.h"

#include <cctype>

#include "cachedit/error.h"
#include "generate_options.h"

namespace cachedit::cli {
namespace {

constexpr const char* kTextEncoders[] = {"text_encoder", "text_encoder_2"};

std::string in_small_letters(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

void QuantizeOptions::add_text(CLI::App& command) {
  command.add_flag("--quantize-text-encoder,--q-text", text_,
                   "Quantize the text encoders, too, as --quantize-type says");
  command
      .add_option("--quantize-text-type,--q-text-type", text_type_,
                  "Quantize the text encoders as this type")
      ->check(not_empty());
}

void QuantizeOptions::add_common(CLI::App& command, const std::string& group_size_names) {
  command
      .add_option(
          "--exclude-layers", exclude_layers_,
          "Layers whose names contain one of these stay as stored, comma separated (default: "
          "embedder,embed,modulation,mod)")
      ->delimiter(',');
  command
      .add_option(group_size_names, group_size_,
                  "int4_weight_only: inputs that share a scale: 32, 64 (default) or 128")
      ->check(whole_number());
  command.add_flag("--disable-regional-quantize,--disable-regional,--no-regional", whole_,
                   "Of the transformer, not only the layers in its blocks");
}

void QuantizeOptions::add_to(CLI::App& command) {
  command.add_flag("--quantize,--q", transformer_,
                   "Quantize the transformer's linear layers (default type: float8_per_row)");
  command
      .add_option("--quantize-type,--q-type", type_,
                  "int8_per_row, int8_per_tensor, int8_weight_only, int4_weight_only, "
                  "float8_per_row, float8_per_tensor, float8_per_block or float8_weight_only")
      ->check(not_empty());
  add_text(command);
  add_common(command, "--quantize-group-size");
}

void QuantizeOptions::add_to_quantize(CLI::App& command) {
  transformer_ = true;
  command
      .add_option("--quantize-type,--q-type", type_,
                  "int8_per_row, int8_per_tensor, int8_weight_only, int4_weight_only, "
                  "float8_per_row, float8_per_tensor, float8_per_block or float8_weight_only")
      ->check(not_empty())
      ->required();
  add_text(command);
  add_common(command, "--group-size,--quantize-group-size");
}

void QuantizeOptions::edit(QuantizeConfig& config) const {
  std::map<std::string, ComponentQuantizeConfig>& components = config.components_to_quantize;
  const bool text = text_ || text_type_;
  if (transformer_ || type_) {
    if (type_) config.quant_type = in_small_letters(*type_);
    if (!components.empty() || text) {
      ComponentQuantizeConfig& own = components["transformer"];
      if (type_) own.quant_type.reset();
    }
  }
  if (text) {
    for (const char* encoder : kTextEncoders) {
      ComponentQuantizeConfig& own = components[encoder];
      if (text_type_) own.quant_type = in_small_letters(*text_type_);
    }
  }
  if (exclude_layers_) {
    config.exclude_layers = *exclude_layers_;
    for (auto& [name, own] : components) own.exclude_layers.reset();
  }
  if (group_size_) config.group_size = *group_size_;
  if (whole_) {
    config.regional_quantize = false;
    for (auto& [name, own] : components) own.regional_quantize.reset();
  }
}

std::optional<QuantizeConfig> QuantizeOptions::make(std::optional<QuantizeConfig> base,
                                                    const std::string& where) const {
  const bool chooses = transformer_ || type_ || text_ || text_type_;
  if (!chooses && !base) {
    const char* option = nullptr;
    if (exclude_layers_) option = "--exclude-layers";
    if (group_size_) option = "--quantize-group-size";
    if (whole_) option = "--disable-regional-quantize";
    if (option == nullptr) return std::nullopt;
    throw InputError("[" + where + "] " + option +
                     " has no effect without --quantize; add it, or a --config-path with a "
                     "quantize_config");
  }
  // A file that names no components means the transformer, which must not get lost beside others.
  if (base && base->components_to_quantize.empty()) {
    base->components_to_quantize["transformer"] = {};
  }
  QuantizeConfig config = base.value_or(QuantizeConfig());
  edit(config);
  try {
    check_quantize_config(config);
  } catch (const ConfigError& error) {
    throw InputError(error.what());
  } catch (const UnsupportedError& error) {  // a type that this version lacks
    throw InputError(error.what());
  }
  return config;
}

}  // namespace cachedit::cli
