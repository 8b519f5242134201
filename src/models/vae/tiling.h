// Working through a large image in overlapping square tiles whose seams are blended, and through a
// batch one entry at a time. The network is any function here, so that tests can use a toy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "models/vae/autoencoder_kl.h"

namespace cachedit::models {

/// Maps one piece, [B, C, H, W], of an image or latent to its latent or image.
using TileFunction = std::function<at::Tensor(const at::Tensor&)>;

/// Where tiles lie, counted in latent positions; an image has `scale` pixels to each and side.
///
/// Tiles start at every multiple of `stride` and are cut off at the border, as in diffusers.
/// Counting in whole latent positions on both sides keeps tiles and their results aligned for every
/// tile size and overlap; diffusers rounds pixels and latents apart, and where its two roundings
/// disagree (a tile that is not a multiple of the scale, an overlap that is not whole) its result
/// has another size than the image. Where they agree, the tiles are the same.
struct TileGrid {
  int64_t tile = 1;
  int64_t stride = 1;  ///< in [1, tile]; tile - stride positions overlap
  int64_t scale = 1;

  int64_t overlap() const { return tile - stride; }
};

/// The grid of a request. `sample_size` is the tile in pixels where the request names none.
/// Throws InputError for an overlap factor outside [0, 1) or a tile below one latent position.
TileGrid plan_tiles(const VaeTiling& options, int64_t sample_size, int64_t scale_factor);

/// decode(latents) for latents no larger than a tile; otherwise its tiles [B, C, h, w], each
/// decoded to [B, C', h * scale, w * scale] and blended.
at::Tensor tiled_decode(const at::Tensor& latents, const TileFunction& decode,
                        const TileGrid& grid);

/// encode(pixels) for an image no larger than a tile; otherwise its tiles [B, C, H, W], each
/// encoded to [B, C', H / scale, W / scale] and blended. H and W are multiples of scale.
at::Tensor tiled_encode(const at::Tensor& pixels, const TileFunction& encode, const TileGrid& grid);

/// function(x) computed for one entry of the batch after the other.
at::Tensor sliced(const at::Tensor& x, const TileFunction& function);

}  // namespace cachedit::models
