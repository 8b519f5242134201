#include "pipelines/flux_shape.h"

#include "nn/modulation.h"

namespace cachedit::pipelines {
namespace {

constexpr int64_t kSinusoidalWidth = 256;

using parallel::Tokens;

/// Text and image tokens meet weights of their own, of the same sizes: three projections, one of
/// attention's output, and an MLP of four times the width.
parallel::BlockShape double_block(const models::FluxConfig& c) {
  const int64_t width = c.width();
  const auto w = static_cast<double>(width);
  return {.count = c.num_layers,
          .token_flops = 2 * 12 * w * w,
          .projection_flops = 2 * w * w,
          .meanwhile_flops = 0,
          // to_out.0, to_add_out, ff.net.2, ff_context.net.2
          .sums = {Tokens::kImage, Tokens::kText, Tokens::kImage, Tokens::kText},
          .gathered = {6 * width, 6 * width},  // norm1, norm1_context
          .vector_weights = 12 * width * width,
          // Besides what the products read and write: two norms (2 each) and two streams to add
          // gated products to; query and key, normed and rotated in place (2 each).
          .moved = {.whole = 6 * w, .shared = 4 * w}};
}

/// Three projections and the MLP's first half read the normed tokens; proj_out reads attention's
/// output and the MLP's.
parallel::BlockShape single_block(const models::FluxConfig& c) {
  const int64_t width = c.width();
  const auto w = static_cast<double>(width);
  return {.count = c.num_single_layers,
          .token_flops = 2 * 12 * w * w,
          .projection_flops = 2 * w * w,
          .meanwhile_flops = 2 * 4 * w * w,  // proj_mlp
          .sums = {Tokens::kJoint},          // proj_out
          .gathered = {3 * width},           // norm
          .vector_weights = 3 * width * width,
          // A norm (2) and the stream to add to; query and key (4).
          .moved = {.whole = 3 * w, .shared = 4 * w}};
}

/// What flux_shard_rules() shares out, biases of column-wise layers included.
int64_t shared_weights(const models::FluxConfig& c) {
  const int64_t width = c.width();
  const int64_t of_double = 36 * width * width + 26 * width;
  const int64_t of_single = 15 * width * width + 10 * width;
  return c.num_layers * of_double + c.num_single_layers * of_single;
}

}  // namespace

parallel::TransformerShape flux_shape(const models::FluxConfig& c, int64_t parameters) {
  const int64_t width = c.width();
  const auto w = static_cast<double>(width);
  const int64_t embedders = c.guidance_embeds ? 2 : 1;  // of the time step and of the guidance
  parallel::TransformerShape shape;
  shape.heads = c.num_attention_heads;
  shape.head_dim = c.attention_head_dim;
  shape.latent_channels = c.out_channels;
  shape.blocks = {double_block(c), single_block(c)};
  shape.image_flops = 2 * w * static_cast<double>(c.in_channels + c.out_channels);
  shape.vector_steps = nn::ModulationTable::kStepsAtOnce;
  shape.vector_weights = embedders * (kSinusoidalWidth + width) * width + 2 * width * width;
  shape.shared_weights = shared_weights(c);
  shape.whole_weights = parameters - shape.shared_weights;
  // The single block's, whose buffers live through the run: stream and norm; query, key and value,
  // attention's output, MLP. Then the result, too.
  shape.attention_peak = {.whole = 2 * w, .shared = 8 * w};
  shape.mlp_peak = {.whole = 3 * w, .shared = 8 * w};
  return shape;
}

}  // namespace cachedit::pipelines
