#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cachedit/quantize.h"
#include "pipelines/quantize_choice.h"

namespace cachedit {
namespace {

std::string joined(const std::map<std::string, int64_t>& counts, bool count_first) {
  std::string text;
  for (const auto& [name, count] : counts) {
    if (!text.empty()) text += ", ";
    text += count_first ? c10::str(count, " ", name) : c10::str(name, " ", count);
  }
  return text;
}

std::string line_of(const ComponentQuantization& c) {
  std::map<std::string, int64_t> types, kept, changed, in_file;
  for (const LayerQuantization& layer : c.layers) {
    if (layer.type.empty()) {
      ++kept[layer.note.empty() ? "not asked for" : layer.note];
    } else {
      ++types[layer.type];
      if (layer.note.starts_with(pipelines::kInFile)) {
        ++in_file[layer.note.substr(pipelines::kInFile.size())];
      } else if (!layer.note.empty()) {
        ++changed[layer.note];
      }
    }
  }
  constexpr double kMiB = 1 << 20;
  char bytes[64];
  std::snprintf(bytes, sizeof(bytes), "%.2f -> %.2f MiB",
                static_cast<double>(c.stored_bytes) / kMiB, static_cast<double>(c.bytes) / kMiB);
  std::string text = c10::str(c.component, ": ", c.quantized_layers(), " of ", c.layers.size(),
                              " linear layers quantized",
                              types.empty() ? "" : " (" + joined(types, false) + ")", ", ", bytes);
  if (!changed.empty()) text += "; of another type than asked for: " + joined(changed, true);
  if (!in_file.empty()) text += "; quantized in the file, kept so: " + joined(in_file, true);
  if (!kept.empty()) text += "; as stored: " + joined(kept, true);
  return text;
}

}  // namespace

int64_t ComponentQuantization::quantized_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerQuantization& layer) { return !layer.type.empty(); });
}

std::string quantization_summary(const std::vector<ComponentQuantization>& components) {
  std::string text;
  for (const ComponentQuantization& c : components) {
    const bool asked = std::any_of(
        c.layers.begin(), c.layers.end(),
        [](const LayerQuantization& layer) { return !layer.type.empty() || !layer.note.empty(); });
    if (!asked) continue;
    if (!text.empty()) text += '\n';
    text += line_of(c);
  }
  return text;
}

}  // namespace cachedit
