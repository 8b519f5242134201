// FLUX.1 text to image and image to image, as diffusers' FluxPipeline and FluxImg2ImgPipeline.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cachedit/pipeline.h"
#include "models/flux/flux_transformer.h"
#include "models/vae/autoencoder_kl.h"
#include "pipelines/attention_choice.h"
#include "pipelines/cache_choice.h"
#include "pipelines/flux_request.h"
#include "pipelines/flux_tokens.h"
#include "pipelines/parallel_choice.h"
#include "pipelines/prompt_encoder.h"
#include "pipelines/quantize_choice.h"
#include "pipelines/runner_host.h"
#include "pipelines/schedulers/flow_match_euler.h"

namespace cachedit::pipelines {

/// By component.
using QuantizeRecords = std::map<std::string, ComponentQuantization>;

/// Loads the components that ranks can share out, each given the ranks that do (null: whole), and
/// that can be quantized, noting in the records what became of their layers.
struct FluxLoaders {
  std::function<models::FluxTransformer(comm::Communicator*, const QuantizeChoice&,
                                        QuantizeRecords&)>
      transformer;
  /// For text_encoder and text_encoder_2.
  std::function<std::unique_ptr<PromptEncoder>(comm::Communicator*, comm::Communicator*,
                                               const QuantizeChoice&, QuantizeRecords&)>
      prompts;
  /// Warns of patterns that no layer's name has.
  std::function<void(const QuantizeChoice&)> warn_of_unmet;
};

/// The loaded parts, all of one dtype and on one device, shared out as `parallel` says.
struct FluxParts {
  FluxLoaders loaders;
  ParallelChoice parallel;
  QuantizeChoice quantize;
  QuantizeRecords quantized;
  std::unique_ptr<PromptEncoder> prompts;
  models::FluxTransformer transformer;
  models::AutoencoderKl vae;
  FlowMatchEulerScheduler scheduler;
  AttentionChoice attention;
  at::Device device;
  std::shared_ptr<StepProfile> profile;
};

/// What a layout must fit.
ParallelLimits parallel_limits(const models::FluxConfig& config);

class FluxPipeline final : public Pipeline, public RunnerHost {
 public:
  /// Throws ConfigError where the parts do not fit together (channels, widths).
  explicit FluxPipeline(FluxParts parts);

  GenerateResult generate(const GenerateRequest& request) const override;
  GenerateResult generate_with(const GenerateRequest& request,
                               nn::BlockRunner& runner) const override;
  std::string class_name() const override { return "FluxPipeline"; }
  std::string dtype() const override;
  std::string device() const override { return parts_.device.str(); }
  void choose_attention(const std::string& name, AttentionSource source) override {
    parts_.attention.choose(name, source);
  }
  std::string attention_backend() const override { return parts_.attention.name(); }
  void enable_caching(const EnableCacheOptions& options) override;
  void disable_caching() override { cache_.clear(); }
  std::string caching() const override { return cache_.name(); }
  const World& world() const override { return parts_.parallel.world(); }
  const ParallelismConfig& parallelism() const override { return parts_.parallel.config(); }
  std::vector<ComponentQuantization> quantization() const override;
  int64_t transformer_bytes() const override { return parts_.transformer.parameter_bytes(); }

 private:
  struct Branch;
  struct Run;
  GenerateResult run(const GenerateRequest& request, nn::BlockRunner* runner) const;
  void reload(const EnableCacheOptions& options);
  void require_same_run(const GenerateRequest& request) const;
  uint64_t common_seed(const GenerateRequest& request) const;
  models::FluxSteps steps_of(const GenerateRequest& request, const FluxPlan& plan,
                             const Run& run) const;
  Branch make_branch(const PromptEmbeds& embeds, const FluxPlan& plan,
                     const models::FluxSteps& steps, const attention::Attention& backend) const;
  PromptEmbeds positive_embeds(const GenerateRequest& request, const FluxPlan& plan) const;
  PromptEmbeds negative_embeds(const GenerateRequest& request, const FluxPlan& plan) const;
  PromptEmbeds given_embeds(const at::Tensor& tokens, const at::Tensor& pooled,
                            int64_t copies) const;
  at::Tensor start_latents(const GenerateRequest& request, const FluxPlan& plan,
                           const Schedule& schedule, int64_t first_step, uint64_t seed) const;
  at::Tensor noised_image(const GenerateRequest& request, const FluxPlan& plan,
                          const Schedule& schedule, int64_t first_step,
                          at::Generator& generator) const;
  at::Tensor denoise(const GenerateRequest& request, const FluxPlan& plan, Run run,
                     GenerateResult& result) const;
  at::Tensor forward(const Run& run, const Branch& branch, const at::Tensor& latents, int64_t index,
                     nn::BlockRunner& runner) const;
  at::Tensor predict(const FluxPlan& plan, const GenerateRequest& request, const Run& run,
                     const at::Tensor& latents, int64_t index, nn::BlockRunner& runner) const;
  void report_step(const GenerateRequest& request, int64_t step,
                   const GenerateResult& result) const;
  std::vector<Image> decode(const GenerateRequest& request, const FluxPlan& plan,
                            const at::Tensor& latents) const;

  FluxParts parts_;
  CacheChoice cache_;
};

}  // namespace cachedit::pipelines
