#include "pipelines/weight_sizes.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

namespace cachedit::pipelines {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr int64_t kScaleBytes = 4;

int64_t count_of(const io::TensorEntry& entry) {
  const int64_t stored = c10::multiply_integers(entry.shape);
  return entry.dtype == c10::ScalarType::Byte ? 2 * stored : stored;  // two int4 in a byte
}

int64_t scales_of(nn::QuantType type, int64_t count, int64_t outputs, int64_t group) {
  if (type == nn::QuantType::kInt4WeightOnly) return count / group;
  if (nn::is_per_tensor(type)) return 1;
  if (type != nn::QuantType::kFloat8PerBlock || count == 0) return outputs;
  const auto blocks = [](int64_t n) { return (n + nn::kFloat8Block - 1) / nn::kFloat8Block; };
  return blocks(outputs) * blocks(count / outputs);
}

}  // namespace

WeightSizes weight_sizes(const io::WeightStore& store, c10::ScalarType dtype,
                         const std::vector<nn::QuantizedLayer>& layers, int64_t group_size) {
  std::map<std::string, const nn::QuantizedLayer*, std::less<>> by_name;
  for (const nn::QuantizedLayer& layer : layers) by_name[layer.layer] = &layer;
  std::map<std::optional<nn::QuantType>, int64_t> counts;
  const auto plain = static_cast<int64_t>(c10::elementSize(dtype));
  WeightSizes sizes;
  for (const std::string& name : store.names()) {
    const io::TensorEntry& entry = store.entry(name);
    const std::string_view layer_name =
        name.ends_with(kWeight) ? std::string_view(name).substr(0, name.size() - kWeight.size())
                                : std::string_view(name).substr(0, name.rfind('.'));
    const auto layer = by_name.find(layer_name);
    const bool linear = layer != by_name.end();
    if (linear && layer->second->was_quantized && !name.ends_with(kWeight) &&
        !name.ends_with(".bias")) {
      continue;  // its scales, counted with the weight
    }
    const int64_t count = count_of(entry);
    sizes.parameters += count;
    if (linear && name.ends_with(kWeight)) {
      const std::optional<nn::QuantType> type = layer->second->type;
      counts[type] += count;
      if (type) {
        const int64_t bits = *type == nn::QuantType::kInt4WeightOnly ? 4 : 8;
        sizes.bytes +=
            count * bits / 8 + kScaleBytes * scales_of(*type, count, entry.shape.at(0), group_size);
        continue;
      }
    }
    const bool stays = c10::elementSize(entry.dtype) == 1;
    sizes.bytes += stays ? static_cast<int64_t>(entry.end - entry.begin) : count * plain;
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != counts.end()) sizes.type = most->first;
  return sizes;
}

}  // namespace cachedit::pipelines
