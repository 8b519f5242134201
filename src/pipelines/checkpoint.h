// A folder in diffusers' layout: model_index.json and the components that it names.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace cachedit::pipelines {

struct CheckpointIndex {
  std::filesystem::path folder;
  std::string class_name;                         ///< of the pipeline
  std::map<std::string, std::string> components;  ///< name -> class; absent ones ([null, null]) out

  /// Throws ConfigError unless the component is there and of one of the classes, which are
  /// separated by '|'.
  std::filesystem::path component(const std::string& name, const std::string& classes) const;
};

/// `model` as in load_pipeline. Throws IoError without model_index.json, ConfigError if it is
/// malformed.
CheckpointIndex read_checkpoint_index(const std::string& model);

}  // namespace cachedit::pipelines
