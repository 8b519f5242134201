// Reading of transformers' text encoder configs: the checks and the harmless keys that every class
// shares.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "io/json_config.h"

namespace cachedit::models {

/// A width, count or length: `fallback` when absent, ConfigError unless in [1, limit].
int64_t read_size(io::JsonConfig& json, std::string_view key, int64_t fallback,
                  int64_t limit = int64_t{1} << 24);

/// A stabilizer of a norm's division: ConfigError unless positive and below 1.
double read_epsilon(io::JsonConfig& json, std::string_view key, double fallback);

/// Throws ConfigError unless the class (where the config names one) is one of `classes` and
/// "model_type" (where present) one of `model_types`; one of the two has to be there. Throws as
/// check_quantization_method() does.
void require_model(io::JsonConfig& json, std::initializer_list<std::string_view> classes,
                   std::initializer_list<std::string_view> model_types);

/// Marks the keys of transformers' base config class: training, text generation, label names and
/// bookkeeping, none of which an encoder's forward pass reads.
void ignore_base_config_keys(io::JsonConfig& json);

}  // namespace cachedit::models
