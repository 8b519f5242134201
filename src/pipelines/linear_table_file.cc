#include "pipelines/linear_table_file.h"

#include <charconv>
#include <cmath>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/json_config.h"
#include "io/json_text.h"

namespace cachedit::pipelines {
namespace {

using nlohmann::json;

const json& object_of(const json& value, const std::string& where) {
  if (!value.is_object()) {
    fail<ConfigError>(where, "must be an object: got ", io::show_json(value));
  }
  return value;
}

int64_t parse_step(const std::string& text, int64_t steps, const std::string& where) {
  int64_t step = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, step);
  if (error != std::errc() || stop != end || step < 0 || step >= steps) {
    fail<ConfigError>(where, "a reused step must lie in 0..", steps - 1, ": got '", text, "'");
  }
  return step;
}

cache::LinearWeights parse_weights(const json& value, int64_t step, const std::string& where) {
  io::JsonConfig config(value, where);
  cache::LinearWeights fitted{.from = config.get<std::vector<int64_t>>("from"),
                              .weights = config.get<std::vector<double>>("weights")};
  config.finish();
  if (fitted.from.empty() || fitted.from.size() != fitted.weights.size()) {
    fail<ConfigError>(where, "'from' and 'weights' must be equally many, at least one: got ",
                      fitted.from.size(), " and ", fitted.weights.size());
  }
  int64_t later = step;
  for (const int64_t from : fitted.from) {
    if (from < 0 || from >= later) {
      fail<ConfigError>(where, "'from' must hold computed steps, the newest first: got ", from,
                        " after ", later);
    }
    later = from;
  }
  for (const double weight : fitted.weights) {
    if (!std::isfinite(weight)) fail<ConfigError>(where, "weights must be finite: got ", weight);
  }
  return fitted;
}

cache::LinearSteps parse_steps(const json& value, int64_t steps, const std::string& where) {
  cache::LinearSteps all;
  for (const auto& [key, weights] : object_of(value, where).items()) {
    const int64_t step = parse_step(key, steps, where);
    all[step] = parse_weights(weights, step, where + " step " + key);
  }
  return all;
}

}  // namespace

cache::LinearTable read_linear_table(const std::filesystem::path& path) {
  const std::string where = path.string();
  const json root = object_of(io::read_json_file(path), where);
  for (const auto& [key, value] : root.items()) {
    if (key != "num_inference_steps" && key != "contexts") {
      fail<ConfigError>(where, "unknown key: got '", key,
                        "'; use num_inference_steps and contexts");
    }
  }
  if (!root.contains("contexts")) fail<ConfigError>(where, "the key 'contexts' is missing");
  cache::LinearTable table;
  json counts = root;
  counts.erase("contexts");
  table.num_inference_steps = io::JsonConfig(counts, where).get<int64_t>("num_inference_steps");
  if (table.num_inference_steps < 1) {
    fail<ConfigError>(where, "num_inference_steps must be at least 1: got ",
                      table.num_inference_steps);
  }
  for (const auto& [name, streams] : object_of(root["contexts"], where).items()) {
    for (const auto& [stream, steps] : object_of(streams, where + " " + name).items()) {
      if (stream != "hidden" && stream != "encoder") {
        fail<ConfigError>(where, "unknown stream of ", name, ": got '", stream,
                          "'; use hidden and encoder");
      }
      table.contexts[name][stream] =
          parse_steps(steps, table.num_inference_steps, where + " " + name + " " + stream);
    }
  }
  return table;
}

void write_linear_table(const std::filesystem::path& path, const cache::LinearTable& table) {
  json contexts = json::object();
  for (const auto& [name, streams] : table.contexts) {
    json& context = contexts[name] = json::object();
    for (const auto& [stream, steps] : streams) {
      json& of_stream = context[stream] = json::object();
      for (const auto& [step, fitted] : steps) {
        of_stream[std::to_string(step)] = {{"from", fitted.from}, {"weights", fitted.weights}};
      }
    }
  }
  const nlohmann::ordered_json root = {{"num_inference_steps", table.num_inference_steps},
                                       {"contexts", contexts}};
  io::AtomicFile file(path);
  file.write(root.dump(1) + "\n");
  file.commit();
}

}  // namespace cachedit::pipelines
