// FLUX's single-stream block: attention and MLP in parallel over the joint sequence.
#pragma once

#include "models/flux/flux_config.h"
#include "models/flux/qkv_projection.h"
#include "nn/block_runner.h"
#include "nn/layers.h"
#include "nn/modulation.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

class FluxSingleBlock final : public nn::Block {
 public:
  FluxSingleBlock(const nn::WeightScope& scope, const FluxConfig& config);
  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext& context) const override;

 private:
  int64_t head_dim_;
  nn::Modulation norm_;
  QkvProjection qkv_;
  nn::Linear proj_mlp_;
  nn::Linear proj_out_;
};

}  // namespace cachedit::models
