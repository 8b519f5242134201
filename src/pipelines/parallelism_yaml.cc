#include "pipelines/parallelism_yaml.h"

#include <vector>

#include "base/fail.h"
#include "io/json_config.h"
#include "io/json_text.h"
#include "io/yaml_file.h"
#include "pipelines/config_keys.h"

namespace cachedit::pipelines {
namespace {

using nlohmann::json;

struct SizeKey {
  const char* name;
  const char* alias;  ///< cache-dit's short form; null: there is none
  std::optional<int64_t> ParallelismConfig::*size;
};

constexpr SizeKey kSizes[] = {{"ulysses_size", "ulysses", &ParallelismConfig::ulysses_size},
                              {"ring_size", "ring", &ParallelismConfig::ring_size},
                              {"tp_size", "tp", &ParallelismConfig::tp_size},
                              {"cfg_size", nullptr, &ParallelismConfig::cfg_size}};

struct SwitchKey {
  const char* name;
  bool ParallelismConfig::*value;
};

constexpr SwitchKey kSwitches[] = {
    {"ulysses_anything", &ParallelismConfig::ulysses_anything},
    {"ulysses_float8", &ParallelismConfig::ulysses_float8},
    {"ulysses_async", &ParallelismConfig::ulysses_async},
    {"ring_convert_to_fp32", &ParallelismConfig::ring_convert_to_fp32}};

std::vector<std::string> known_keys() {
  std::vector<std::string> known = {"attention_backend",
                                    "backend",
                                    "auto_size",
                                    "ring_rotate_method",
                                    "extra_parallel_modules",
                                    "extra_parallel_kwargs",
                                    "parallel_kwargs",
                                    "cp_plan"};
  for (const SizeKey& key : kSizes) {
    known.emplace_back(key.name);
    if (key.alias != nullptr) known.emplace_back(key.alias);
  }
  for (const SwitchKey& key : kSwitches) known.emplace_back(key.name);
  return known;
}

/// cache-dit's older files keep some of the fields in parallel_kwargs.
json flattened(const json& object, const std::string& where) {
  json flat = object;
  const json kwargs = object.value("parallel_kwargs", json());
  flat.erase("parallel_kwargs");
  if (kwargs.is_null()) return flat;
  if (!kwargs.is_object()) {
    fail<ConfigError>(where, "parallel_kwargs must hold keys and values: got ",
                      io::show_json(kwargs));
  }
  constexpr std::string_view kOldPrefix = "experimental_";
  for (const auto& [key, value] : kwargs.items()) {
    flat[key.starts_with(kOldPrefix) ? key.substr(kOldPrefix.size()) : key] = value;
  }
  return flat;
}

void read_size(const json& object, io::JsonConfig& config, const SizeKey& key,
               ParallelismConfig& out) {
  for (const char* name : {key.alias, key.name}) {
    if (name == nullptr || object.value(name, json()).is_null()) continue;
    if (object[name] == "auto") {
      if (!out.auto_size.empty() && out.auto_size != key.name) {
        fail<ConfigError>(config.where(), "only one size may be auto: got ", out.auto_size, " and ",
                          key.name);
      }
      out.auto_size = key.name;
      continue;
    }
    const auto size = config.get<int64_t>(name);
    std::optional<int64_t>& own = out.*key.size;
    if (own.value_or(size) != size) {
      fail<ConfigError>(config.where(), key.alias, " and ", key.name, " must agree: got ", *own,
                        " and ", size);
    }
    own = size;
  }
}

}  // namespace

ParallelismConfig read_parallelism(const json& object, const std::string& where) {
  if (!object.is_object()) check_keys(object, known_keys(), where);
  const json flat = flattened(object, where);
  check_keys(flat, known_keys(), where);
  for (const char* python_only : {"cp_plan", "extra_parallel_kwargs"}) {
    const json value = flat.value(python_only, json());
    if (value.is_null() || value.empty()) continue;
    fail<ConfigError>(where, python_only, " describes Python modules and must be left out: got ",
                      io::show_json(value));
  }
  io::JsonConfig config(flat, where);
  ParallelismConfig out;
  for (const SizeKey& key : kSizes) read_size(flat, config, key, out);
  for (const SwitchKey& key : kSwitches) {
    out.*key.value = config.get_or<bool>(key.name, out.*key.value);
  }
  out.attention_backend = config.get_or<std::string>("attention_backend", "");
  out.ring_rotate_method = config.get_or<std::string>("ring_rotate_method", out.ring_rotate_method);
  out.extra_parallel_modules =
      config.get_or<std::vector<std::string>>("extra_parallel_modules", {});
  return out;
}

std::string parallelism_text(const ParallelismConfig& config) {
  const ParallelismConfig defaults;
  if (config == defaults) return {};
  std::string text = "parallelism_config:\n";
  const auto add = [&](const char* key, const std::string& value) {
    text += std::string("  ") + key + ": " + value + "\n";
  };
  for (const SizeKey& key : kSizes) {
    if (config.auto_size == key.name) add(key.name, "auto");
    if (config.*key.size) add(key.name, std::to_string(*(config.*key.size)));
  }
  for (const SwitchKey& key : kSwitches) {
    if (config.*key.value != defaults.*key.value) {
      add(key.name, config.*key.value ? "true" : "false");
    }
  }
  if (config.ring_rotate_method != defaults.ring_rotate_method) {
    add("ring_rotate_method", io::yaml_text(config.ring_rotate_method));
  }
  if (!config.extra_parallel_modules.empty()) {
    std::string list;
    for (const std::string& module : config.extra_parallel_modules) {
      list += (list.empty() ? "" : ", ") + io::yaml_text(module);
    }
    add("extra_parallel_modules", "[" + list + "]");
  }
  if (!config.attention_backend.empty()) {
    add("attention_backend", io::yaml_text(config.attention_backend));
  }
  return text;
}

}  // namespace cachedit::pipelines
