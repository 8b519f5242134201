#include "pipelines/quantize_component.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/atomic_file.h"
#include "io/json_config.h"
#include "models/flux/flux_transformer.h"
#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "nn/weight_quantizer.h"
#include "pipelines/quantize_file.h"

namespace cachedit::pipelines {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";

template <class Model, class Config>
void load_as(const fs::path& folder, const io::WeightStore& store,
             const nn::WeightOptions& options) {
  io::JsonConfig json = io::JsonConfig::read(folder / "config.json");
  const Model model(Config::parse(json), store, options);
}

void list_layers(const std::string& class_name, const fs::path& folder,
                 const io::WeightStore& store, const nn::WeightOptions& options) {
  if (class_name == "FluxTransformer2DModel") {
    return load_as<models::FluxTransformer, models::FluxConfig>(folder, store, options);
  }
  if (class_name == "CLIPTextModel" || class_name == "CLIPTextModelWithProjection") {
    return load_as<models::ClipTextModel, models::ClipTextConfig>(folder, store, options);
  }
  if (class_name == "T5EncoderModel") {
    return load_as<models::T5EncoderModel, models::T5EncoderConfig>(folder, store, options);
  }
  fail<UnsupportedError>(folder.string(), "class ", class_name,
                         " is not supported by this version");
}

void write_text(const fs::path& path, const std::string& text) {
  io::AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace

QuantizedComponent::QuantizedComponent(const fs::path& source, std::string component,
                                       const std::string& class_name, const QuantizeConfig& config,
                                       const QuantizeChoice& choice)
    : config_(*config_of(config, component)), store_(io::WeightStore::open(source)) {
  QuantizeRecord record(component);
  nn::WeightOptions options{.list_only = true};
  options.quantization = choice.plan(component, store_);
  std::string already = fs::exists(source / kQuantizationFile) ? kQuantizationFile : "";
  record.listen(options);
  options.on_linear_layer = [&, inner = options.on_linear_layer](const nn::QuantizedLayer& layer) {
    inner(layer);
    if (layer.was_quantized && already.empty()) already = layer.layer;
  };
  list_layers(class_name, source, store_, options);
  if (!already.empty()) {
    fail<InputError>(source.string(), "the component is quantized already: got ", already,
                     "; take the original checkpoint");
  }
  plan_ = record.result();
  for (const LayerQuantization& layer : plan_.layers) {
    if (!layer.type.empty()) types_[layer.layer] = layer.type;
  }
}

ComponentQuantization QuantizedComponent::write(const fs::path& folder,
                                                const std::function<void(int64_t)>& on_layer) {
  plan_.bytes = 0;
  total_size_ = done_ = 0;
  for (const io::SafetensorsFile& file : store_.files()) write_shard(file, folder, on_layer);
  const bool single = store_.files().size() == 1;
  const std::string name = store_.files()[0].path().filename().string();
  if (!single || (name != "diffusion_pytorch_model.safetensors" && name != "model.safetensors")) {
    write_index(folder);
  }
  write_text(folder / kQuantizationFile, stored_quantization_text(config_, plan_));
  return plan_;
}

void QuantizedComponent::write_shard(const io::SafetensorsFile& file, const fs::path& folder,
                                     const std::function<void(int64_t)>& on_layer) {
  std::map<std::string, at::Tensor> tensors;
  const std::string shard = file.path().filename().string();
  for (const auto& [name, entry] : file.header().tensors) {
    if (!store_.contains(name) || &store_.file_of(name) != &file) continue;
    const at::Tensor values = store_.tensor(name);
    const std::string layer =
        name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : "";
    const auto type = types_.find(layer);
    if (type == types_.end()) {
      tensors[name] = values;
      const bool linear =
          std::any_of(plan_.layers.begin(), plan_.layers.end(),
                      [&](const LayerQuantization& own) { return own.layer == layer; });
      if (linear) plan_.bytes += static_cast<int64_t>(values.nbytes());
      continue;
    }
    nn::LinearWeight plain;
    plain.values = values.scalar_type() == at::kDouble ? values.to(at::kFloat) : values;
    nn::check_finite(plain.values, c10::str(file.path().string(), " ", name));
    const nn::LinearWeight result =
        nn::quantized(plain, nn::parse_quant_type(type->second, "quantize"), config_.group_size);
    store_.release_pages(values);
    tensors[name] = result.values;
    tensors[layer + ".weight_scale"] = result.scales;
    plan_.bytes += static_cast<int64_t>(result.values.nbytes() + result.scales.nbytes());
    on_layer(++done_);
  }
  io::write_safetensors(folder / shard, tensors, file.header().metadata);
  for (const auto& [name, tensor] : tensors) {
    shard_of_[name] = shard;
    total_size_ += static_cast<int64_t>(tensor.nbytes());
    store_.release_pages(tensor);
  }
}

void QuantizedComponent::write_index(const fs::path& folder) const {
  const std::string first = store_.files()[0].path().filename().string();
  const std::string base =
      first.starts_with("diffusion_pytorch_model") ? "diffusion_pytorch_model" : "model";
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_size_}}},
                                        {"weight_map", shard_of_}};
  write_text(folder / (base + ".safetensors.index.json"), index.dump(2) + "\n");
}

bool is_weight_file(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const char* ending : {".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5",
                             ".onnx", ".gguf", ".index.json"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

}  // namespace cachedit::pipelines
