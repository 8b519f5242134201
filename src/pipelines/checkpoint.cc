#include "pipelines/checkpoint.h"

#include "base/fail.h"
#include "io/json_config.h"
#include "io/model_path.h"

namespace cachedit::pipelines {
namespace {

bool is_one_of(const std::string& name, const std::string& classes) {
  return ("|" + classes + "|").find("|" + name + "|") != std::string::npos;
}

}  // namespace

CheckpointIndex read_checkpoint_index(const std::string& model) {
  CheckpointIndex index;
  index.folder = io::resolve_model_path(model);
  const std::filesystem::path path = index.folder / "model_index.json";
  if (!std::filesystem::exists(path)) {
    fail<IoError>(index.folder.string(),
                  "no model_index.json: not a checkpoint in diffusers' layout; give the folder "
                  "that holds model_index.json, transformer/, vae/ ...");
  }
  const nlohmann::json json = io::read_json_file(path);
  if (!json.is_object() || !json.contains("_class_name") || !json["_class_name"].is_string()) {
    fail<ConfigError>(path.string(), "_class_name must name the pipeline's class");
  }
  index.class_name = json["_class_name"].get<std::string>();
  for (const auto& [name, value] : json.items()) {
    if (!value.is_array()) continue;  // options of the pipeline, not components
    if (value.size() != 2 || !(value[1].is_string() || value[1].is_null())) {
      fail<ConfigError>(path.string(), "component '", name, "' must be [library, class]: got ",
                        value.dump());
    }
    if (value[1].is_string()) index.components[name] = value[1].get<std::string>();
  }
  return index;
}

std::filesystem::path CheckpointIndex::component(const std::string& name,
                                                 const std::string& classes) const {
  const auto found = components.find(name);
  if (found == components.end()) {
    fail<ConfigError>((folder / "model_index.json").string(), "component '", name,
                      "' is missing; it must be a ", classes);
  }
  if (!is_one_of(found->second, classes)) {
    fail<ConfigError>((folder / "model_index.json").string(), "component '", name, "' must be a ",
                      classes, ": got ", found->second);
  }
  const std::filesystem::path path = folder / name;
  if (!std::filesystem::is_directory(path)) {
    fail<IoError>(path.string(), "the folder of component '", name, "' (", found->second,
                  ") is missing; download the whole checkpoint");
  }
  return path;
}

}  // namespace cachedit::pipelines
