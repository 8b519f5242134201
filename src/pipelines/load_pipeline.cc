#include <c10/core/InferenceMode.h>

#include "base/environment.h"
#include "base/fail.h"
#include "base/log.h"
#include "cachedit/pipeline.h"
#include "io/weight_store.h"
#include "pipelines/checkpoint.h"
#include "pipelines/checkpoint_text.h"
#include "pipelines/device.h"
#include "pipelines/flux_pipeline.h"
#include "pipelines/out_of_memory.h"

namespace cachedit {
namespace pipelines {
namespace {

constexpr const char* kClip = "CLIPTextModel|CLIPTextModelWithProjection";
constexpr const char* kT5Tokenizers = "T5Tokenizer|T5TokenizerFast";
constexpr const char* kClipTokenizers = "CLIPTokenizer|CLIPTokenizerFast";

template <class Config>
Config read_config(const std::filesystem::path& folder, const char* file = "config.json") {
  io::JsonConfig json = io::JsonConfig::read(folder / file);
  return Config::parse(json);
}

std::unique_ptr<Pipeline> load_flux(const CheckpointIndex& index, const LoadOptions& options) {
  for (const char* ignored : {"image_encoder", "feature_extractor"}) {
    if (index.components.count(ignored) != 0) {
      log_warning(c10::str("[load] component '", ignored,
                           "' is not used: image prompts (IP-Adapter) are not supported"));
    }
  }
  const std::filesystem::path transformer =
      index.component("transformer", "FluxTransformer2DModel");
  const std::filesystem::path vae = index.component("vae", "AutoencoderKL");
  const std::filesystem::path text_encoder = index.component("text_encoder", kClip);
  const std::filesystem::path text_encoder_2 = index.component("text_encoder_2", "T5EncoderModel");
  const std::filesystem::path tokenizer = index.component("tokenizer", kClipTokenizers);
  const std::filesystem::path tokenizer_2 = index.component("tokenizer_2", kT5Tokenizers);
  const std::filesystem::path scheduler =
      index.component("scheduler", "FlowMatchEulerDiscreteScheduler");

  // Everything is read and checked before the first model is built.
  const auto flux_config = read_config<models::FluxConfig>(transformer);
  const auto vae_config = read_config<models::AutoencoderKlConfig>(vae);
  const auto clip_config = read_config<models::ClipTextConfig>(text_encoder);
  const auto t5_config = read_config<models::T5EncoderConfig>(text_encoder_2);
  const auto scheduler_config =
      read_config<FlowMatchEulerConfig>(scheduler, "scheduler_config.json");
  const auto transformer_store = io::WeightStore::open(transformer);
  const auto vae_store = io::WeightStore::open(vae);
  const auto clip_store = io::WeightStore::open(text_encoder);
  const auto t5_store = io::WeightStore::open(text_encoder_2);

  const at::Device device = parse_device(options.device);
  const QuantizeChoice quantize(options.quantize_config, device);
  AttentionChoice attention(device, environment().attention_backend);
  ParallelChoice parallel =
      options.parallelism_config.enabled()
          ? ParallelChoice(options.world, options.parallelism_config, parallel_limits(flux_config))
          : ParallelChoice(options.world);
  const nn::WeightOptions weights = {
      .dtype = parse_dtype(options.dtype, transformer_store.floating_dtype(), device),
      .device = device};
  const auto shared = [weights](comm::Communicator* group) {
    nn::WeightOptions own = weights;
    own.tensor_parallel.group = group;
    return own;
  };
  const std::shared_ptr<StepProfile> profile = options.profile;
  const FluxLoaders loaders = {
      .transformer =
          [=](comm::Communicator* group, const QuantizeChoice& choice, QuantizeRecords& records) {
            QuantizeRecord record("transformer");
            nn::WeightOptions own = shared(group);
            own.quantization = choice.plan("transformer", transformer_store);
            record.listen(own);
            own.pack_linear = true;  // its layers run at every step
            own.profile = profile;
            models::FluxTransformer network(flux_config, transformer_store, own);
            records["transformer"] = record.result();
            return network;
          },
      .prompts =
          [=](comm::Communicator* group, comm::Communicator* group_2, const QuantizeChoice& choice,
              QuantizeRecords& records) {
            QuantizeRecord clip_record("text_encoder"), t5_record("text_encoder_2");
            nn::WeightOptions clip = shared(group), t5 = shared(group_2);
            clip.quantization = choice.plan("text_encoder", clip_store);
            t5.quantization = choice.plan("text_encoder_2", t5_store);
            clip_record.listen(clip);
            t5_record.listen(t5);
            auto prompts = std::make_unique<PromptEncoder>(
                text::load_clip_tokenizer(tokenizer), text::load_t5_tokenizer(tokenizer_2),
                models::ClipTextModel(clip_config, clip_store, clip),
                models::T5EncoderModel(t5_config, t5_store, t5), device);
            records["text_encoder"] = clip_record.result();
            records["text_encoder_2"] = t5_record.result();
            return prompts;
          },
      .warn_of_unmet =
          [=](const QuantizeChoice& choice) {
            choice.warn_of_unmet({{"transformer", &transformer_store},
                                  {"text_encoder", &clip_store},
                                  {"text_encoder_2", &t5_store}});
          }};
  if (parallel.several()) {
    parallel.world().require_equal(
        "checkpoint", checkpoint_text({transformer_store, clip_store, t5_store, vae_store}));
  }
  if (parallel.several()) parallel.world().require_equal("quantize_config", quantize.text());
  loaders.warn_of_unmet(quantize);
  QuantizeRecords records;
  auto prompts = loaders.prompts(parallel.extra("text_encoder"), parallel.extra("text_encoder_2"),
                                 quantize, records);
  models::FluxTransformer network =
      loaders.transformer(parallel.tensor_parallel(), quantize, records);
  return std::make_unique<FluxPipeline>(
      FluxParts{.loaders = loaders,
                .parallel = std::move(parallel),
                .quantize = quantize,
                .quantized = std::move(records),
                .prompts = std::move(prompts),
                .transformer = std::move(network),
                .vae = models::AutoencoderKl(vae_config, vae_store, weights),
                .scheduler = FlowMatchEulerScheduler(scheduler_config),
                .attention = std::move(attention),
                .device = device,
                .profile = profile});
}

}  // namespace
}  // namespace pipelines

std::unique_ptr<Pipeline> load_pipeline(const std::string& model, const LoadOptions& options) {
  const c10::InferenceMode inference;
  const pipelines::CheckpointIndex index = pipelines::read_checkpoint_index(model);
  if (index.class_name == "FluxPipeline" || index.class_name == "FluxImg2ImgPipeline") {
    return pipelines::report_out_of_memory("load",
                                           [&] { return pipelines::load_flux(index, options); });
  }
  fail<UnsupportedError>((index.folder / "model_index.json").string(),
                         "this version runs FluxPipeline and FluxImg2ImgPipeline: got ",
                         index.class_name);
}

}  // namespace cachedit
