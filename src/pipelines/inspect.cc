#include "cachedit/inspect.h"

#include <set>

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

void add_weights(const std::filesystem::path& folder, ComponentInfo& info) {
  const auto store = io::WeightStore::open(folder);
  std::set<std::string> dtypes;
  for (const std::string& name : store.names()) {
    dtypes.insert(dtype_name(store.entry(name).dtype));
  }
  for (const std::string& dtype : dtypes) info.dtype += (info.dtype.empty() ? "" : "+") + dtype;
  info.parameters = store.parameters();
  info.bytes = store.bytes();
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
