#include "cachedit/inspect.h"

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct InspectOptions {
  std::string model;
  bool json = false;
};

nlohmann::ordered_json to_json(const CheckpointInfo& info) {
  nlohmann::ordered_json components = nlohmann::ordered_json::array();
  for (const ComponentInfo& c : info.components) {
    components.push_back({{"name", c.name},
                          {"class", c.class_name},
                          {"dtype", c.dtype},
                          {"parameters", c.parameters},
                          {"quantized_layers", c.quantized_layers},
                          {"bytes", c.bytes},
                          {"blocks", c.blocks},
                          {"unsupported", c.unsupported}});
  }
  return {{"path", info.path},
          {"class", info.class_name},
          {"unsupported", info.unsupported},
          {"components", components}};
}

std::string count(int64_t parameters) {
  char text[32];
  if (parameters == 0) return "-";
  if (parameters >= 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.2f B", static_cast<double>(parameters) / 1e9);
  } else {
    std::snprintf(text, sizeof(text), "%.2f M", static_cast<double>(parameters) / 1e6);
  }
  return text;
}

std::string size(int64_t bytes) {
  char text[32];
  if (bytes == 0) return "-";
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib >= 1024) {
    std::snprintf(text, sizeof(text), "%.2f GiB", mib / 1024);
  } else {
    std::snprintf(text, sizeof(text), "%.2f MiB", mib);
  }
  return text;
}

/// "int8_per_row: 100 layers, float8_per_row: 4 layers".
std::string layers_text(const std::map<std::string, int64_t>& types) {
  std::string text;
  for (const auto& [type, layers] : types) {
    text += (text.empty() ? "" : ", ") + type + ": " + std::to_string(layers) +
            (layers == 1 ? " layer" : " layers");
  }
  return text;
}

void print(const CheckpointInfo& info) {
  std::printf("%s\n%s%s\n\n", info.path.c_str(), info.class_name.c_str(),
              info.unsupported.empty() ? "" : (" (unsupported: " + info.unsupported + ")").c_str());
  std::printf("%-16s %-32s %-15s %10s %11s  %s\n", "component", "class", "dtype", "parameters",
              "size", "blocks");
  for (const ComponentInfo& c : info.components) {
    std::printf("%-16s %-32s %-15s %10s %11s  %s\n", c.name.c_str(), c.class_name.c_str(),
                c.dtype.empty() ? "-" : c.dtype.c_str(), count(c.parameters).c_str(),
                size(c.bytes).c_str(), c.blocks.empty() ? "-" : c.blocks.c_str());
  }
  const char* gap = "\n";  // before the first
  for (const ComponentInfo& c : info.components) {
    if (c.quantized_layers.empty()) continue;
    std::printf("%squantized: %s: %s\n", gap, c.name.c_str(),
                layers_text(c.quantized_layers).c_str());
    gap = "";
  }
  for (const ComponentInfo& c : info.components) {
    if (c.unsupported.empty()) continue;
    std::printf("\nunsupported: %s: %s\n", c.name.c_str(), c.unsupported.c_str());
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a checkpoint's components, and what this version cannot run in it");
  command
      ->add_option("model", options->model,
                   "Checkpoint folder or hub name; default: the shipped model")
      ->check(not_empty());
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options] {
    const std::string model =
        options->model.empty() ? default_model_path().string() : options->model;
    const CheckpointInfo info = inspect_checkpoint(model);
    if (options->json) {
      std::fputs(to_text(to_json(info)).c_str(), stdout);
    } else {
      print(info);
    }
  });
}

}  // namespace cachedit::cli
