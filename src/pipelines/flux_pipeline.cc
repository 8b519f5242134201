#include "pipelines/flux_pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

#include "base/dtype_name.h"
#include "base/fail.h"
#include "base/stopwatch.h"
#include "comm/collectives.h"
#include "io/image_resize.h"
#include "pipelines/cache_trace.h"
#include "pipelines/cfg_statistics.h"
#include "pipelines/device.h"
#include "pipelines/image_tensors.h"
#include "pipelines/latents.h"
#include "pipelines/out_of_memory.h"
#include "pipelines/request_text.h"

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

/// One guidance branch of a run: this rank's tokens, and the attention that knows all ranks' ones.
struct FluxPipeline::Branch {
  int64_t index = 0;  ///< 0 conditional, 1 unconditional
  FluxTokens tokens;
  models::FluxConditioning conditioning;
  ParallelAttention attention;
};

/// What denoise() needs besides the request.
struct FluxPipeline::Run {
  std::optional<Branch> conditional;
  std::optional<Branch> unconditional;
  std::unique_ptr<nn::Arena> arena = std::make_unique<nn::Arena>();  ///< of both branches
  Schedule schedule;
  int64_t first_step = 0;
  at::Tensor latents;                 ///< this rank's tokens
  nn::BlockRunner* runner = nullptr;  ///< null: what caching chooses
};

ParallelLimits parallel_limits(const models::FluxConfig& config) {
  return {.attention_heads = config.num_attention_heads,
          .modules = {"text_encoder", "text_encoder_2", "vae"}};
}

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
  AttentionChoice attention = parts_.attention;
  if (!backend.empty()) attention.choose(backend, AttentionSource::kConfig);
  if (options.parallelism_config.enabled() || options.quantize_config) reload(options);
  parts_.attention = std::move(attention);
  cache_ = std::move(cache);
}

/// Loads again what another layout or another quantization changes.
void FluxPipeline::reload(const EnableCacheOptions& options) {
  const ParallelismConfig& layout = options.parallelism_config;
  ParallelChoice& now = parts_.parallel;
  ParallelChoice chosen =
      layout.enabled()
          ? ParallelChoice(now.world(), layout, parallel_limits(parts_.transformer.config()))
          : now;
  const QuantizeChoice quantize = options.quantize_config
                                      ? QuantizeChoice(options.quantize_config, parts_.device)
                                      : parts_.quantize;
  if (chosen.several()) {
    chosen.world().require_equal("parallelism_config",
                                 parallel::to_string(layout_of(chosen.config())));
    chosen.world().require_equal("quantize_config", quantize.text());
  }
  const auto requantized = [&](const std::string& component) {
    return quantize != parts_.quantize &&
           (quantize.names(component) || parts_.quantize.names(component));
  };
  const auto shared_anew = [&](comm::Communicator* before, comm::Communicator* after) {
    return layout.enabled() && (before != nullptr || after != nullptr);
  };
  if (quantize != parts_.quantize) parts_.loaders.warn_of_unmet(quantize);
  QuantizeRecords records = parts_.quantized;
  std::unique_ptr<PromptEncoder> prompts;
  bool other_encoders = false;
  for (const char* encoder : {"text_encoder", "text_encoder_2"}) {
    other_encoders |=
        requantized(encoder) || shared_anew(now.extra(encoder), chosen.extra(encoder));
  }
  if (other_encoders) {
    prompts = parts_.loaders.prompts(chosen.extra("text_encoder"), chosen.extra("text_encoder_2"),
                                     quantize, records);
  }
  if (requantized("transformer") || shared_anew(now.tensor_parallel(), chosen.tensor_parallel())) {
    parts_.transformer = parts_.loaders.transformer(chosen.tensor_parallel(), quantize, records);
  }
  if (prompts) parts_.prompts = std::move(prompts);
  parts_.quantize = quantize;
  parts_.quantized = std::move(records);
  now = std::move(chosen);
}

std::vector<ComponentQuantization> FluxPipeline::quantization() const {
  std::vector<ComponentQuantization> all;
  for (const auto& [component, record] : parts_.quantized) all.push_back(record);
  return all;
}

void FluxPipeline::require_same_run(const GenerateRequest& request) const {
  const ParallelChoice& parallel = parts_.parallel;
  parallel.require_chosen();
  parallel.check_backend(attention_backend(), parts_.device);
  if (!parallel.several()) return;
  parallel.world().require_equal(
      "request", c10::str(request_text(request), "dtype: ", dtype(),
                          "\nattention backend: ", attention_backend(), "\ncaching: ", caching(),
                          "\n", parts_.quantize.text(),
                          "\nlayout: ", parallel::to_string(parallel.mesh().layout())));
}

uint64_t FluxPipeline::common_seed(const GenerateRequest& request) const {
  if (request.seed) return *request.seed;
  at::Tensor seed = at::full({1}, static_cast<int64_t>(random_seed()), at::kLong);
  comm::Communicator& world = parts_.parallel.world().communicator();
  seed = seed.to(world.device());
  comm::broadcast(world, seed, 0);
  return static_cast<uint64_t>(seed.item<int64_t>());
}

models::FluxSteps FluxPipeline::steps_of(const GenerateRequest& request, const FluxPlan& plan,
                                         const Run& run) const {
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(parts_.device);
  const std::vector<float>& timesteps = run.schedule.timesteps;
  // Divided in the latents' dtype, as diffusers does.
  models::FluxSteps steps = {
      .timesteps =
          at::tensor(at::ArrayRef<float>(timesteps).slice(static_cast<size_t>(run.first_step)), f32)
              .to(parts_.transformer.dtype())
              .unsqueeze(1) /
          1000};
  if (parts_.transformer.config().guidance_embeds) {
    steps.guidance = at::full({plan.images()}, request.guidance_scale, f32);
  }
  return steps;
}

FluxPipeline::Branch FluxPipeline::make_branch(const PromptEmbeds& embeds, const FluxPlan& plan,
                                               const models::FluxSteps& steps,
                                               const attention::Attention& backend) const {
  const ParallelChoice& parallel = parts_.parallel;
  const int64_t text = embeds.tokens.size(1), image = plan.grid_height * plan.grid_width;
  parallel.check_tokens(text, image);
  const FluxTokens tokens(parallel.mesh().sequence(), text, image);
  const models::FluxConditioning whole = parts_.transformer.prepare(
      embeds.tokens, embeds.pooled, steps, plan.grid_height, plan.grid_width);
  return {.tokens = tokens,
          .conditioning = tokens.take(whole),
          .attention = ParallelAttention(backend, parallel, tokens.lengths())};
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
  return parts_.prompts->encode(plan.prompt, plan.prompt_2, plan.copies, plan.max_sequence_length);
}

PromptEmbeds FluxPipeline::negative_embeds(const GenerateRequest& request,
                                           const FluxPlan& plan) const {
  if (request.negative_prompt_embeds.defined()) {
    return given_embeds(request.negative_prompt_embeds, request.negative_pooled_prompt_embeds,
                        plan.copies);
  }
  return parts_.prompts->encode(plan.negative_prompt, plan.negative_prompt_2, plan.copies,
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
  const at::Tensor encoded =
      parts_.vae.encode(pixels, tiling_of(request), parts_.parallel.extra("vae")).sample(generator);
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

at::Tensor FluxPipeline::forward(const Run& run, const Branch& branch, const at::Tensor& latents,
                                 int64_t index, nn::BlockRunner& runner) const {
  return parts_.transformer.forward(
      latents, branch.conditioning, runner, branch.attention.get(),
      {.step = index - run.first_step,
       .num_steps = static_cast<int64_t>(run.schedule.timesteps.size()) - run.first_step,
       .branch = branch.index});
}

at::Tensor FluxPipeline::predict(const FluxPlan& plan, const GenerateRequest& request,
                                 const Run& run, const at::Tensor& latents, int64_t index,
                                 nn::BlockRunner& runner) const {
  comm::Communicator& cfg = parts_.parallel.mesh().cfg();
  at::Tensor conditional, unconditional;
  if (cfg.size() == 2) {
    const Branch& own = cfg.rank() == 0 ? *run.conditional : *run.unconditional;
    const at::Tensor velocity = forward(run, own, latents, index, runner).unsqueeze(0).contiguous();
    const at::Tensor both = comm::all_gather(cfg, velocity, {1, 1}, 0);
    conditional = both.select(0, 0);
    unconditional = both.select(0, 1);
  } else {
    conditional = forward(run, *run.conditional, latents, index, runner);
    if (!plan.true_cfg) return conditional;
    unconditional = forward(run, *run.unconditional, latents, index, runner);
  }
  return unconditional + (conditional - unconditional) * request.true_cfg_scale;
}

/// Ranks stop together or not at all.
void FluxPipeline::report_step(const GenerateRequest& request, int64_t step,
                               const GenerateResult& result) const {
  const bool stop = request.on_step && !request.on_step({.step = step,
                                                         .num_steps = result.num_inference_steps,
                                                         .seconds = result.step_seconds.back()});
  comm::Communicator& world = parts_.parallel.world().communicator();
  if (comm::all_reduce_sum(world, {stop ? 1.0 : 0.0})[0] == 0) return;
  throw Cancelled(
      c10::str("[generate] stopped after step ", step, " of ", result.num_inference_steps));
}

at::Tensor FluxPipeline::denoise(const GenerateRequest& request, const FluxPlan& plan, Run run,
                                 GenerateResult& result) const {
  at::Tensor latents = run.latents;
  const auto steps = static_cast<int64_t>(run.schedule.timesteps.size());
  result.num_inference_steps = steps - run.first_step;
  const parallel::Mesh& mesh = parts_.parallel.mesh();
  const CacheChoice::Passes passes = {.separate_cfg = plan.true_cfg,
                                      .one_branch = mesh.cfg().size() > 1,
                                      .group = mesh.branch().size() > 1 ? &mesh.branch() : nullptr};
  const auto cached =
      run.runner == nullptr ? cache_.make(result.num_inference_steps, passes) : nullptr;
  nn::PlainBlockRunner plain;
  nn::BlockRunner& chosen = cached ? static_cast<nn::BlockRunner&>(*cached) : plain;
  nn::BlockRunner& runner = run.runner == nullptr ? chosen : *run.runner;
  CacheTracer tracer;
  Stopwatch watch;
  for (int64_t i = run.first_step; i < steps; ++i) {
    const int64_t step = i - run.first_step + 1;
    try {
      const at::Tensor velocity = predict(plan, request, run, latents, i, runner);
      latents = parts_.scheduler.step(run.schedule, i, velocity, latents);
      result.step_seconds.push_back(watch.restart());
      if (cached) tracer.note(cached->statistics());
      report_step(request, step, result);
    } catch (const CommError& error) {
      fail<CommError>("generate", "in step ", step, " of ", result.num_inference_steps, ": ",
                      error.what());
    }
  }
  if (cached) {
    result.cache = cached->statistics();
    result.cache_traces = tracer.take();
    if (mesh.cfg().size() > 1) merge_guidance_branches(result, mesh.cfg());
  }
  latents = run.conditional->tokens.gather_latents(latents);
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
  comm::Communicator* group = parts_.parallel.extra("vae");
  const bool first = parts_.parallel.world().rank() == 0;
  if (!first && group == nullptr) return {};
  const at::Tensor pixels = parts_.vae.decode(unscaled, tiling_of(request), group);
  return first ? pixels_to_images(pixels) : std::vector<Image>();
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
  require_same_run(request);
  const models::FluxConfig& flux = parts_.transformer.config();
  const FluxPlan plan = plan_flux_request(
      request, {.vae_scale_factor = parts_.vae.config().scale_factor(),
                .sample_size = parts_.vae.config().sample_size,
                .default_sequence_length = parts_.prompts->default_sequence_length(),
                .guidance_embeds = flux.guidance_embeds});
  if (parts_.parallel.mesh().cfg().size() > 1 && !plan.true_cfg) {
    fail<InputError>("generate",
                     "cfg_size 2 shares out the two branches of true CFG, which this "
                     "request does not use; give true_cfg_scale above 1 and a negative prompt, or "
                     "leave cfg_size out");
  }
  GenerateResult result;
  result.seed = common_seed(request);
  result.height = plan.height;
  result.width = plan.width;
  result.max_sequence_length = plan.max_sequence_length;
  result.embeds_guidance = flux.guidance_embeds;

  const Stopwatch total;
  Stopwatch stage;
  const std::unique_ptr<attention::Attention> backend = parts_.attention.make();
  std::set<std::string> backends;
  const RecordingAttention attention(*backend, backends, parts_.profile.get());
  Run run{.runner = runner};
  run.schedule = parts_.scheduler.make_schedule(
      {.sigmas = plan.sigmas, .mu = parts_.scheduler.mu_for(plan.grid_height * plan.grid_width)});
  run.first_step = first_step_of(request, plan.num_inference_steps);

  const models::FluxSteps steps = steps_of(request, plan, run);
  run.conditional.emplace(make_branch(positive_embeds(request, plan), plan, steps, attention));
  if (plan.true_cfg) {
    run.unconditional.emplace(make_branch(negative_embeds(request, plan), plan, steps, attention));
    run.unconditional->index = 1;
    run.unconditional->conditioning.arena = run.arena.get();
  }
  run.conditional->conditioning.arena = run.arena.get();
  result.seconds.text = stage.restart();

  run.latents = run.conditional->tokens.take_latents(
      start_latents(request, plan, run.schedule, run.first_step, result.seed));
  comm::Communicator& world = parts_.parallel.world().communicator();
  world.reset_traffic();
  const at::Tensor latents = denoise(request, plan, std::move(run), result);
  result.parallel = {.layout = parallel::to_string(parts_.parallel.mesh().layout()),
                     .ranks = world.size(),
                     .bytes_sent = world.traffic().bytes_sent,
                     .messages_sent = world.traffic().messages_sent,
                     .seconds = world.traffic().seconds};
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
