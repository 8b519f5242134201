// FLUX.1 text to image and image to image, as diffusers' FluxPipeline and FluxImg2ImgPipeline.
#pragma once

#include <string>

#include "cachedit/pipeline.h"
#include "models/flux/flux_transformer.h"
#include "models/vae/autoencoder_kl.h"
#include "pipelines/attention_choice.h"
#include "pipelines/cache_choice.h"
#include "pipelines/flux_request.h"
#include "pipelines/prompt_encoder.h"
#include "pipelines/runner_host.h"
#include "pipelines/schedulers/flow_match_euler.h"

namespace cachedit::pipelines {

/// The loaded parts, all of one dtype and on one device.
struct FluxParts {
  PromptEncoder prompts;
  models::FluxTransformer transformer;
  models::AutoencoderKl vae;
  FlowMatchEulerScheduler scheduler;
  AttentionChoice attention;
  at::Device device;
};

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

 private:
  struct Run;
  GenerateResult run(const GenerateRequest& request, nn::BlockRunner* runner) const;
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
  at::Tensor predict(const FluxPlan& plan, const GenerateRequest& request, const Run& run,
                     const at::Tensor& latents, int64_t index, nn::BlockRunner& runner) const;
  std::vector<Image> decode(const GenerateRequest& request, const FluxPlan& plan,
                            const at::Tensor& latents) const;

  FluxParts parts_;
  CacheChoice cache_;
};

}  // namespace cachedit::pipelines
