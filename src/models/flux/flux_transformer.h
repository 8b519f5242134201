// FLUX.1's denoising network (Black Forest Labs 2024), names as in diffusers'
// FluxTransformer2DModel. Blocks run through a BlockRunner, attention through an Attention.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "io/weight_store.h"
#include "models/flux/double_block.h"
#include "models/flux/flux_config.h"
#include "models/flux/single_block.h"
#include "nn/block_runner.h"
#include "nn/rotary.h"
#include "nn/timestep_embedding.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

/// The steps of a run, as the network is told of them.
struct FluxSteps {
  at::Tensor timesteps;      ///< [steps, B], or [steps, 1] for all of a batch; in [0, 1]
  at::Tensor guidance = {};  ///< [B], defined exactly when the config embeds guidance
};

/// What is computed once for all steps of a run.
struct FluxConditioning {
  at::Tensor encoder;  ///< text tokens in the network's width [B, Nt, C]
  std::shared_ptr<nn::ModulationTable> modulations;
  nn::RotaryEmbedding rotary;
  nn::Arena* arena = nullptr;  ///< buffers of the run, or null
};

class FluxTransformer {
 public:
  /// Throws WeightError listing every missing, wrong-shaped and left-over tensor. Where `options`
  /// name a group of ranks, this one holds its share by flux_shard_rules(), and all of them must
  /// call forward() together; UnsupportedError where the heads do not divide.
  FluxTransformer(const FluxConfig& config, const io::WeightStore& store,
                  const nn::WeightOptions& options);

  /// `prompt_embeds` [B, Nt, joint_attention_dim], `pooled` [B, pooled_projection_dim], the image
  /// grid in tokens. Throws InputError for other widths, and for guidance where the model has none.
  FluxConditioning prepare(const at::Tensor& prompt_embeds, const at::Tensor& pooled,
                           const FluxSteps& steps, int64_t grid_height, int64_t grid_width) const;

  /// Predicts the velocity [B, Ni, out_channels] of packed latents [B, Ni, in_channels] in
  /// `step.step`, one of the steps that `conditioning` was prepared for. The steps of a run share
  /// what `conditioning` keeps, so they must not run at the same time.
  at::Tensor forward(const at::Tensor& latents, const FluxConditioning& conditioning,
                     nn::BlockRunner& runner, const attention::Attention& attention,
                     const nn::StepInfo& step) const;

  const FluxConfig& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }
  /// Of the weights that this rank holds.
  int64_t parameter_bytes() const { return parameter_bytes_; }

 private:
  FluxTransformer(const FluxConfig& config, const nn::WeightLoader& loader);
  /// [steps, B, C]
  at::Tensor embed_conditioning(const FluxSteps& steps, const at::Tensor& pooled) const;

  FluxConfig config_;
  at::ScalarType dtype_;
  at::Device device_;
  int64_t parameter_bytes_ = 0;
  nn::Linear x_embedder_;
  nn::Linear context_embedder_;
  nn::EmbeddingMlp timestep_embedder_;
  std::unique_ptr<nn::EmbeddingMlp> guidance_embedder_;  // null without guidance
  nn::EmbeddingMlp text_embedder_;
  std::vector<std::unique_ptr<FluxDoubleBlock>> transformer_blocks_;
  std::vector<std::unique_ptr<FluxSingleBlock>> single_transformer_blocks_;
  nn::Modulation norm_out_;
  nn::Linear proj_out_;
};

}  // namespace cachedit::models
