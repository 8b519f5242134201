#include "pipelines/flux_pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "base/stopwatch.h"
#include "io/image_resize.h"
#include "pipelines/cache_trace.h"
#include "pipelines/device.h"
#include "pipelines/image_tensors.h"
#include "pipelines/latents.h"
#include "pipelines/out_of_memory.h"

namespace cachedit::pipelines {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return device();  // 32 bits: short enough to type again
}

models::VaeTiling tiling_of(const GenerateRequest& request) {
  return {.tiling = request.vae_tiling, .slicing = request.vae_slicing};
}

/// Steps that image to image leaves out at the start.
int64_t first_step_of(const GenerateRequest& request, int64_t steps) {
  if (!request.image) return 0;
  const double kept =
      std::min(static_cast<double>(steps) * request.strength, static_cast<double>(steps));
  const auto first = static_cast<int64_t>(std::max(static_cast<double>(steps) - kept, 0.0));
  if (first >= steps) {
    fail<InputError>("generate", "strength ", request.strength, " of ", steps,
                     " steps leaves no step to run; raise one of them");
  }
  return first;
}

}  // namespace

/// What denoise() needs besides the request: one conditioning per guidance branch.
struct FluxPipeline::Run {
  models::FluxConditioning conditional;
  models::FluxConditioning unconditional;
  Schedule schedule;
  int64_t first_step = 0;
  at::Tensor latents;
  at::Tensor guidance;
  const attention::Attention& attention;
  nn::BlockRunner* runner = nullptr;  ///< null: what caching chooses
};

FluxPipeline::FluxPipeline(FluxParts parts) : parts_(std::move(parts)) {
  const models::FluxConfig& flux = parts_.transformer.config();
  const int64_t latent_channels = parts_.vae.config().latent_channels;
  if (flux.in_channels != 4 * latent_channels || flux.out_channels != flux.in_channels) {
    fail<ConfigError>("flux",
                      "the transformer's in_channels and out_channels must be four times "
                      "the VAE's latent_channels: got ",
                      flux.in_channels, ", ", flux.out_channels, " and ", latent_channels);
  }
}

void FluxPipeline::enable_caching(const EnableCacheOptions& options) {
  const std::string backend = configured_attention(options);
  CacheChoice cache = cache_;
  if (chooses_caching(options)) {
    const models::FluxConfig& flux = parts_.transformer.config();
    cache.choose(options, {{"transformer_blocks", flux.num_layers},
                           {"single_transformer_blocks", flux.num_single_layers}});
  }
  if (!backend.empty()) parts_.attention.choose(backend, AttentionSource::kConfig);
  cache_ = std::move(cache);
}

std::string FluxPipeline::dtype() const { return dtype_name(parts_.transformer.dtype()); }

PromptEmbeds FluxPipeline::given_embeds(const at::Tensor& tokens, const at::Tensor& pooled,
                                        int64_t copies) const {
  const auto place = [&](const at::Tensor& t) {
    return t.to(parts_.device, parts_.transformer.dtype()).repeat_interleave(copies, 0);
  };
  return {.tokens = place(tokens), .pooled = place(pooled)};
}

PromptEmbeds FluxPipeline::positive_embeds(const GenerateRequest& request,
                                           const FluxPlan& plan) const {
  if (request.prompt_embeds.defined()) {
    return given_embeds(request.prompt_embeds, request.pooled_prompt_embeds, plan.copies);
  }
  return parts_.prompts.encode(plan.prompt, plan.prompt_2, plan.copies, plan.max_sequence_length);
}

PromptEmbeds FluxPipeline::negative_embeds(const GenerateRequest& request,
                                           const FluxPlan& plan) const {
  if (request.negative_prompt_embeds.defined()) {
    return given_embeds(request.negative_prompt_embeds, request.negative_pooled_prompt_embeds,
                        plan.copies);
  }
  return parts_.prompts.encode(plan.negative_prompt, plan.negative_prompt_2, plan.copies,
                               plan.max_sequence_length);
}

at::Tensor FluxPipeline::noised_image(const GenerateRequest& request, const FluxPlan& plan,
                                      const Schedule& schedule, int64_t first_step,
                                      at::Generator& generator) const {
  const models::AutoencoderKlConfig& vae = parts_.vae.config();
  const at::ScalarType dtype = parts_.transformer.dtype();
  const Image resized = io::resize_lanczos(*request.image, plan.width, plan.height);
  const at::Tensor pixels = image_to_pixels(resized).to(parts_.device, dtype);
  // The encoder's sample draws from the generator before the noise does, as in diffusers.
  const at::Tensor encoded = parts_.vae.encode(pixels, tiling_of(request)).sample(generator);
  const at::Tensor clean = (encoded - vae.shift_factor) * vae.scaling_factor;
  const at::Tensor all = clean.repeat({plan.images(), 1, 1, 1});
  const at::Tensor noise = draw_noise(all.sizes(), generator, dtype, parts_.device);
  return pack_latents(parts_.scheduler.scale_noise(schedule, first_step, all, noise));
}

at::Tensor FluxPipeline::start_latents(const GenerateRequest& request, const FluxPlan& plan,
                                       const Schedule& schedule, int64_t first_step,
                                       uint64_t seed) const {
  const int64_t channels = parts_.transformer.config().in_channels;
  const at::ScalarType dtype = parts_.transformer.dtype();
  if (request.latents.defined()) {
    const std::vector<int64_t> wanted = {plan.images(), plan.grid_height * plan.grid_width,
                                         channels};
    if (request.latents.sizes() != at::IntArrayRef(wanted)) {
      fail<InputError>("generate", "latents must be packed, of shape ", wanted, ": got ",
                       request.latents.sizes());
    }
    return request.latents.to(parts_.device, dtype);
  }
  at::Generator generator = make_generator(seed);
  if (request.image) return noised_image(request, plan, schedule, first_step, generator);
  const std::vector<int64_t> shape = {plan.images(), channels / 4, 2 * plan.grid_height,
                                      2 * plan.grid_width};
  return pack_latents(draw_noise(shape, generator, dtype, parts_.device));
}

at::Tensor FluxPipeline::predict(const FluxPlan& plan, const GenerateRequest& request,
                                 const Run& run, const at::Tensor& latents, int64_t index,
                                 nn::BlockRunner& runner) const {
  const at::Tensor timestep =
      at::full({plan.images()}, run.schedule.timesteps[static_cast<size_t>(index)],
               latents.options()) /
      1000;
  const auto forward = [&](const models::FluxConditioning& conditioning, int64_t branch) {
    return parts_.transformer.forward(
        latents, timestep, run.guidance, conditioning, runner, run.attention,
        {.step = index - run.first_step,
         .num_steps = static_cast<int64_t>(run.schedule.timesteps.size()) - run.first_step,
         .branch = branch});
  };
  const at::Tensor conditional = forward(run.conditional, 0);
  if (!plan.true_cfg) return conditional;
  const at::Tensor unconditional = forward(run.unconditional, 1);
  return unconditional + (conditional - unconditional) * request.true_cfg_scale;
}

at::Tensor FluxPipeline::denoise(const GenerateRequest& request, const FluxPlan& plan, Run run,
                                 GenerateResult& result) const {
  at::Tensor latents = run.latents;
  const auto steps = static_cast<int64_t>(run.schedule.timesteps.size());
  result.num_inference_steps = steps - run.first_step;
  const auto cached =
      run.runner == nullptr ? cache_.make(result.num_inference_steps, plan.true_cfg) : nullptr;
  nn::PlainBlockRunner plain;
  nn::BlockRunner& chosen = cached ? static_cast<nn::BlockRunner&>(*cached) : plain;
  nn::BlockRunner& runner = run.runner == nullptr ? chosen : *run.runner;
  CacheTracer tracer;
  Stopwatch watch;
  for (int64_t i = run.first_step; i < steps; ++i) {
    const at::Tensor velocity = predict(plan, request, run, latents, i, runner);
    latents = parts_.scheduler.step(run.schedule, i, velocity, latents);
    result.step_seconds.push_back(watch.restart());
    if (cached) tracer.note(cached->statistics());
    if (request.on_step && !request.on_step({.step = i - run.first_step + 1,
                                             .num_steps = result.num_inference_steps,
                                             .seconds = result.step_seconds.back()})) {
      throw Cancelled(c10::str("[generate] stopped after step ", i - run.first_step + 1, " of ",
                               result.num_inference_steps));
    }
  }
  if (cached) {
    result.cache = cached->statistics();
    result.cache_traces = tracer.take();
  }
  if (!at::isfinite(latents).all().item<bool>()) {
    fail<UnsupportedError>("generate", "the latents are not finite: ", dtype(),
                           " overflows in this checkpoint; use dtype bf16 or fp32");
  }
  return latents;
}

std::vector<Image> FluxPipeline::decode(const GenerateRequest& request, const FluxPlan& plan,
                                        const at::Tensor& latents) const {
  const models::AutoencoderKlConfig& vae = parts_.vae.config();
  const at::Tensor unpacked = unpack_latents(latents, plan.grid_height, plan.grid_width);
  const at::Tensor unscaled = unpacked / vae.scaling_factor + vae.shift_factor;
  return pixels_to_images(parts_.vae.decode(unscaled, tiling_of(request)));
}

GenerateResult FluxPipeline::generate(const GenerateRequest& request) const {
  return report_out_of_memory("generate", [&] { return run(request, nullptr); });
}

GenerateResult FluxPipeline::generate_with(const GenerateRequest& request,
                                           nn::BlockRunner& runner) const {
  return report_out_of_memory("generate", [&] { return run(request, &runner); });
}

GenerateResult FluxPipeline::run(const GenerateRequest& request, nn::BlockRunner* runner) const {
  const c10::InferenceMode inference;
  const models::FluxConfig& flux = parts_.transformer.config();
  const FluxPlan plan = plan_flux_request(
      request, {.vae_scale_factor = parts_.vae.config().scale_factor(),
                .sample_size = parts_.vae.config().sample_size,
                .default_sequence_length = parts_.prompts.default_sequence_length(),
                .guidance_embeds = flux.guidance_embeds});
  GenerateResult result;
  result.seed = request.seed.value_or(random_seed());
  result.height = plan.height;
  result.width = plan.width;
  result.max_sequence_length = plan.max_sequence_length;
  result.embeds_guidance = flux.guidance_embeds;

  const Stopwatch total;
  Stopwatch stage;
  const std::unique_ptr<attention::Attention> backend = parts_.attention.make();
  std::set<std::string> backends;
  const RecordingAttention attention(*backend, backends);
  Run run{.attention = attention, .runner = runner};
  run.schedule = parts_.scheduler.make_schedule(
      {.sigmas = plan.sigmas, .mu = parts_.scheduler.mu_for(plan.grid_height * plan.grid_width)});
  run.first_step = first_step_of(request, plan.num_inference_steps);

  const auto prepare = [&](const PromptEmbeds& embeds) {
    return parts_.transformer.prepare(embeds.tokens, embeds.pooled, plan.grid_height,
                                      plan.grid_width);
  };
  run.conditional = prepare(positive_embeds(request, plan));
  if (plan.true_cfg) run.unconditional = prepare(negative_embeds(request, plan));
  result.seconds.text = stage.restart();

  run.latents = start_latents(request, plan, run.schedule, run.first_step, result.seed);
  if (flux.guidance_embeds) {
    run.guidance = at::full({plan.images()}, request.guidance_scale,
                            at::TensorOptions().dtype(at::kFloat).device(parts_.device));
  }
  const at::Tensor latents = denoise(request, plan, std::move(run), result);
  result.attention_backend = join_names(backends);
  result.seconds.denoise = stage.restart();
  if (request.output_type == OutputType::kLatent) {
    result.latents = latents;
  } else {
    result.images = decode(request, plan, latents);
  }
  result.seconds.decode = stage.restart();
  result.seconds.total = total.seconds();
  return result;
}

}  // namespace cachedit::pipelines
