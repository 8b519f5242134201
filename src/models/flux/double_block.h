// FLUX's double-stream block: text and image tokens with weights of their own, one attention.
#pragma once

#include "models/flux/flux_config.h"
#include "models/flux/qkv_projection.h"
#include "nn/block_runner.h"
#include "nn/feed_forward.h"
#include "nn/layers.h"
#include "nn/modulation.h"
#include "nn/weight_scope.h"

namespace cachedit::models {

class FluxDoubleBlock final : public nn::Block {
 public:
  FluxDoubleBlock(const nn::WeightScope& scope, const FluxConfig& config);
  nn::Streams forward(const nn::Streams& streams, const nn::BlockContext& context) const override;

 private:
  int64_t head_dim_;
  nn::Modulation norm1_, norm1_context_;
  QkvProjection image_qkv_, text_qkv_;
  nn::Linear to_out_, to_add_out_;
  nn::FeedForward ff_, ff_context_;
};

}  // namespace cachedit::models
