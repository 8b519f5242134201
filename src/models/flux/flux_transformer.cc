#include "models/flux/flux_transformer.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "base/fail.h"
#include "models/flux/flux_shards.h"

namespace cachedit::models {
namespace {

constexpr int64_t kSinusoidalWidth = 256;

/// Positions (0, row, column) of the image tokens behind (0, 0, 0) of every text token, fp32
/// [Nt + Ni, 3]. They pass through the activations' dtype, as in diffusers (bf16 merges neighbours
/// beyond 256).
at::Tensor joint_positions(int64_t text, int64_t height, int64_t width, at::ScalarType dtype,
                           at::Device device) {
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(device);
  at::Tensor positions = at::zeros({text + height * width, 3}, f32);
  at::Tensor image = positions.narrow(0, text, height * width).view({height, width, 3});
  image.select(2, 1).copy_(at::arange(height, f32).unsqueeze(1).expand({height, width}));
  image.select(2, 2).copy_(at::arange(width, f32).unsqueeze(0).expand({height, width}));
  return positions.to(dtype).to(at::kFloat);
}

nn::WeightOptions with_shards(nn::WeightOptions options, const FluxConfig& config) {
  if (options.tensor_parallel.group == nullptr) return options;
  check_flux_shards(config, options.tensor_parallel.group->size());
  options.tensor_parallel.rules = flux_shard_rules(config);
  return options;
}

template <class Block>
nn::BlockList list_of(std::string_view name, const std::vector<std::unique_ptr<Block>>& blocks) {
  nn::BlockList list{.name = name, .blocks = {}};
  list.blocks.reserve(blocks.size());
  for (const auto& block : blocks) list.blocks.push_back(block.get());
  return list;
}

}  // namespace

FluxTransformer::FluxTransformer(const FluxConfig& config, const io::WeightStore& store,
                                 const nn::WeightOptions& options)
    : FluxTransformer(config, nn::WeightLoader(store, with_shards(options, config))) {}

FluxTransformer::FluxTransformer(const FluxConfig& config, const nn::WeightLoader& loader)
    : config_(config),
      dtype_(loader.root().dtype()),
      device_(loader.root().device()),
      x_embedder_(loader.root() / "x_embedder", config.in_channels, config.width()),
      context_embedder_(loader.root() / "context_embedder", config.joint_attention_dim,
                        config.width()),
      timestep_embedder_(loader.root() / "time_text_embed.timestep_embedder", kSinusoidalWidth,
                         config.width()),
      text_embedder_(loader.root() / "time_text_embed.text_embedder", config.pooled_projection_dim,
                     config.width()),
      norm_out_(loader.root() / "norm_out", config.width(), 2),
      proj_out_(loader.root() / "proj_out", config.width(), config.out_channels) {
  const nn::WeightScope root = loader.root();
  if (config.guidance_embeds) {
    guidance_embedder_ = std::make_unique<nn::EmbeddingMlp>(
        root / "time_text_embed.guidance_embedder", kSinusoidalWidth, config.width());
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    transformer_blocks_.push_back(
        std::make_unique<FluxDoubleBlock>(root / "transformer_blocks" / i, config));
  }
  for (int64_t i = 0; i < config.num_single_layers; ++i) {
    single_transformer_blocks_.push_back(
        std::make_unique<FluxSingleBlock>(root / "single_transformer_blocks" / i, config));
  }
  loader.finish();
  parameter_bytes_ = loader.bytes();
}

FluxConditioning FluxTransformer::prepare(const at::Tensor& prompt_embeds, const at::Tensor& pooled,
                                          const FluxSteps& steps, int64_t grid_height,
                                          int64_t grid_width) const {
  if (prompt_embeds.dim() != 3 || prompt_embeds.size(2) != config_.joint_attention_dim) {
    fail<InputError>("flux", "prompt_embeds must be [B, N, ", config_.joint_attention_dim,
                     "]: got ", prompt_embeds.sizes());
  }
  if (pooled.dim() != 2 || pooled.size(1) != config_.pooled_projection_dim ||
      pooled.size(0) != prompt_embeds.size(0)) {
    fail<InputError>("flux", "pooled_prompt_embeds must be [", prompt_embeds.size(0), ", ",
                     config_.pooled_projection_dim, "]: got ", pooled.sizes());
  }
  if (steps.guidance.defined() != config_.guidance_embeds) {
    fail<InputError>("flux", "guidance must be given exactly when the model embeds it: it ",
                     config_.guidance_embeds ? "does" : "does not");
  }
  // Every block starts from SiLU(conditioning): computed once here instead of in each.
  const at::Tensor activated = at::silu(embed_conditioning(steps, text_embedder_(pooled)));
  const at::Tensor positions =
      joint_positions(prompt_embeds.size(1), grid_height, grid_width, dtype_, device_);
  return {.encoder = context_embedder_(prompt_embeds),
          .modulations = std::make_shared<nn::ModulationTable>(activated),
          .rotary = nn::make_rotary(positions, config_.axes_dims_rope)};
}

at::Tensor FluxTransformer::embed_conditioning(const FluxSteps& steps,
                                               const at::Tensor& pooled) const {
  // Scaled to 0..1000 in the activations' dtype, as diffusers does.
  const auto sinusoidal = [&](const at::Tensor& value) {
    return nn::sinusoidal_embedding(value.to(dtype_) * 1000, kSinusoidalWidth).to(dtype_);
  };
  const at::Tensor times = sinusoidal(steps.timesteps.flatten());
  at::Tensor sum = timestep_embedder_(times.view({steps.timesteps.size(0), -1, kSinusoidalWidth}));
  if (guidance_embedder_) sum = sum + (*guidance_embedder_)(sinusoidal(steps.guidance));
  return sum + pooled;
}

at::Tensor FluxTransformer::forward(const at::Tensor& latents, const FluxConditioning& conditioning,
                                    nn::BlockRunner& runner, const attention::Attention& attention,
                                    const nn::StepInfo& step) const {
  nn::BlockContext context;
  context.modulations = conditioning.modulations.get();
  context.step = step.step;
  context.rotary = &conditioning.rotary;
  context.attention = &attention;
  context.arena = conditioning.arena;

  nn::Streams streams{.hidden = x_embedder_(latents), .encoder = conditioning.encoder};
  streams = runner.run({list_of("transformer_blocks", transformer_blocks_),
                        list_of("single_transformer_blocks", single_transformer_blocks_)},
                       std::move(streams), context, step);

  // Scale, shift.
  const std::vector<at::Tensor> mod = context.modulations->vectors(norm_out_, context.step);
  return proj_out_(nn::modulated_layer_norm(streams.hidden, mod[0], mod[1]));
}

}  // namespace cachedit::models
