#include "cachedit/inspect.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>

#include "base/dtype_name.h"
#include "cachedit/error.h"
#include "io/json_config.h"
#include "io/weight_store.h"
#include "models/flux/flux_config.h"
#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "models/vae/autoencoder_kl.h"
#include "pipelines/checkpoint.h"
#include "pipelines/device.h"
#include "pipelines/quantize_file.h"
#include "pipelines/schedulers/flow_match_euler.h"
#include "text/tokenizer.h"

namespace cachedit {
namespace pipelines {
namespace {

/// Reads a component's config as the loader would and describes its blocks; throws as the loader
/// would.
std::string describe_blocks(const std::string& class_name, const std::filesystem::path& folder) {
  const auto json = [&](const char* file) { return io::JsonConfig::read(folder / file); };
  if (class_name == "FluxTransformer2DModel") {
    io::JsonConfig config = json("config.json");
    const auto flux = models::FluxConfig::parse(config);
    return c10::str(flux.num_layers, " double + ", flux.num_single_layers, " single");
  }
  if (class_name == "CLIPTextModel" || class_name == "CLIPTextModelWithProjection") {
    io::JsonConfig config = json("config.json");
    return c10::str(models::ClipTextConfig::parse(config).num_hidden_layers, " layers");
  }
  if (class_name == "T5EncoderModel") {
    io::JsonConfig config = json("config.json");
    return c10::str(models::T5EncoderConfig::parse(config).num_layers, " layers");
  }
  if (class_name == "AutoencoderKL") {
    io::JsonConfig config = json("config.json");
    return c10::str(models::AutoencoderKlConfig::parse(config).block_out_channels.size(),
                    " levels");
  }
  if (class_name == "FlowMatchEulerDiscreteScheduler") {
    io::JsonConfig config = json("scheduler_config.json");
    FlowMatchEulerConfig::parse(config);
    return "";
  }
  if (class_name == "CLIPTokenizer" || class_name == "CLIPTokenizerFast") {
    text::load_clip_tokenizer(folder);
    return "";
  }
  if (class_name == "T5Tokenizer" || class_name == "T5TokenizerFast") {
    text::load_t5_tokenizer(folder);
    return "";
  }
  throw UnsupportedError("class " + class_name + " is not supported by this version");
}

bool may_hold_weights(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "config.json");
}

bool is_quantized(at::ScalarType dtype) {
  return nn::weight_only_type(dtype) || dtype == at::kFloat8_e5m2;
}

/// The quantized weight that a tensor of that name lies beside, in any of the spellings in use
/// ("layer.weight_scale", "layer.scale_weight", "layer.weight.scale"...); empty: none.
std::string quantized_neighbor(const io::WeightStore& store, const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return "";
  const std::string stem = name.substr(0, dot);
  for (const std::string& weight : {stem + ".weight", stem}) {
    if (weight != name && store.contains(weight) && is_quantized(store.entry(weight).dtype)) {
      return weight;
    }
  }
  return "";
}

/// Whether a tensor says how weights are quantized, and holds none.
bool describes_weights(const io::WeightStore& store, const std::string& name) {
  if (name == "scaled_fp8") return true;  // ComfyUI's mark of such a file
  const std::string_view own = std::string_view(name).substr(name.rfind('.') + 1);
  const bool known = own.find("scale") != std::string_view::npos || own == "comfy_quant";
  return known && !quantized_neighbor(store, name).empty();
}

/// Whether a byte of that tensor holds two weights of four bits: int4's scales are of groups.
bool holds_pairs(const io::WeightStore& store, const std::string& name) {
  if (store.entry(name).dtype != at::kByte || !name.ends_with(".weight")) return false;
  const std::string scale = name + "_scale";
  return store.contains(scale) && store.entry(scale).shape.size() == 2;
}

/// Tables of text encoders, which are looked up and not multiplied with.
bool is_table(std::string_view layer) {
  for (const char* table : {"shared", "embed_tokens", "embedding", "relative_attention_bias"}) {
    if (layer.ends_with(table)) return true;
  }
  return false;
}

/// The type that the linear layer of this weight is computed with; none: it is not quantized.
std::optional<nn::QuantType> type_of(const io::WeightStore& store, const std::string& name,
                                     const StoredQuantization& stored) {
  constexpr std::string_view kWeight = ".weight";
  const io::TensorEntry& entry = store.entry(name);
  if (!name.ends_with(kWeight) || entry.shape.size() != 2) return std::nullopt;
  const std::string layer = name.substr(0, name.size() - kWeight.size());
  if (is_table(layer)) return std::nullopt;
  const auto said = stored.layers.find(layer);
  if (said != stored.layers.end()) return said->second;
  if (entry.dtype == at::kByte && !holds_pairs(store, name)) return std::nullopt;
  return nn::weight_only_type(entry.dtype);
}

void add_weights(const std::filesystem::path& folder, ComponentInfo& info) {
  const auto store = io::WeightStore::open(folder);
  info.bytes = store.bytes();
  std::set<std::string> dtypes;
  for (const std::string& name : store.names()) {
    const io::TensorEntry& entry = store.entry(name);
    dtypes.insert(dtype_name(entry.dtype));
    if (describes_weights(store, name)) continue;
    const int64_t numbers =
        std::accumulate(entry.shape.begin(), entry.shape.end(), int64_t{1}, std::multiplies<>());
    info.parameters += holds_pairs(store, name) ? 2 * numbers : numbers;
  }
  for (const std::string& dtype : dtypes) info.dtype += (info.dtype.empty() ? "" : "+") + dtype;
  const StoredQuantization stored = read_stored_quantization(store);
  for (const std::string& name : store.names()) {
    if (const auto type = type_of(store, name, stored)) ++info.quantized_layers[nn::name_of(*type)];
  }
}

ComponentInfo inspect_component(const CheckpointIndex& index, const std::string& name,
                                const std::string& class_name) {
  ComponentInfo info;
  info.name = name;
  info.class_name = class_name;
  const std::filesystem::path folder = index.folder / name;
  // Weights and config are looked at on their own: an unknown class still has a size.
  try {
    if (may_hold_weights(folder)) add_weights(folder, info);
  } catch (const Error& error) {
    info.unsupported = error.what();
  }
  try {
    info.blocks = describe_blocks(class_name, folder);
  } catch (const Error& error) {
    info.unsupported = error.what();
  }
  return info;
}

}  // namespace
}  // namespace pipelines

CheckpointInfo inspect_checkpoint(const std::string& model) {
  const pipelines::CheckpointIndex index = pipelines::read_checkpoint_index(model);
  CheckpointInfo info;
  info.path = index.folder.string();
  info.class_name = index.class_name;
  if (info.class_name != "FluxPipeline" && info.class_name != "FluxImg2ImgPipeline") {
    info.unsupported = "this version runs FluxPipeline and FluxImg2ImgPipeline";
  }
  for (const auto& [name, class_name] : index.components) {
    info.components.push_back(pipelines::inspect_component(index, name, class_name));
  }
  return info;
}

}  // namespace cachedit
