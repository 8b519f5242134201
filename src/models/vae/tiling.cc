#include "models/vae/tiling.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fail.h"

namespace cachedit::models {
namespace {

constexpr const char* kWhere = "vae tiling";

/// Lengths of one tile and its neighbours in the pixels of one side, input or output.
struct TileSides {
  int64_t tile;
  int64_t stride;
  int64_t overlap;

  TileSides(const TileGrid& grid, int64_t scale)
      : tile(grid.tile * scale), stride(grid.stride * scale), overlap(grid.overlap() * scale) {}
};

/// Cross-fades, in place, the first `extent` rows (dim 2) or columns (dim 3) of `next` with the
/// last ones of the neighbour before it: the neighbour's weight falls from 1 to 1 / extent. Tiles
/// shorter than the extent are cut off at the border, where both end.
void blend(const at::Tensor& previous, at::Tensor& next, int64_t dim, int64_t extent) {
  extent = std::min({extent, previous.size(dim), next.size(dim)});
  if (extent == 0) return;
  const at::Tensor from = previous.narrow(dim, previous.size(dim) - extent, extent);
  at::Tensor to = next.narrow(dim, 0, extent);
  std::vector<int64_t> shape = {1, 1, 1, 1};
  shape[static_cast<size_t>(dim)] = extent;
  // Weights in double, then fp32; a half-precision sum is rounded once, at the end.
  const at::TensorOptions options = at::TensorOptions().device(next.device());
  const at::Tensor weight = (at::arange(extent, options.dtype(at::kDouble)) / extent).view(shape);
  const at::ScalarType dtype = next.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  to.copy_(from * (1 - weight).to(dtype) + to * weight.to(dtype));
}

/// The tiles of one row, computed, and blended with each other and the row above.
std::vector<at::Tensor> compute_row(const at::Tensor& strip, const TileFunction& function,
                                    const TileSides& in, const TileSides& out,
                                    const std::vector<at::Tensor>& above) {
  std::vector<at::Tensor> row;
  for (int64_t x = 0; x < strip.size(3); x += in.stride) {
    const at::Tensor piece = strip.narrow(3, x, std::min(in.tile, strip.size(3) - x));
    at::Tensor tile = function(piece);
    if (tile.is_alias_of(piece)) tile = tile.clone();  // blending must not reach the input
    if (!above.empty()) blend(above[row.size()], tile, 2, out.overlap);
    if (!row.empty()) blend(row.back(), tile, 3, out.overlap);
    row.push_back(std::move(tile));
  }
  return row;
}

/// `in_scale` and `out_scale`: pixels for each latent position in the input and the output.
at::Tensor run_tiles(const at::Tensor& x, const TileFunction& function, const TileGrid& grid,
                     int64_t in_scale, int64_t out_scale) {
  const TileSides in(grid, in_scale), out(grid, out_scale);
  if (x.size(2) <= in.tile && x.size(3) <= in.tile) return function(x);
  const int64_t height = x.size(2) / in_scale * out_scale;
  const int64_t width = x.size(3) / in_scale * out_scale;
  at::Tensor result;
  std::vector<at::Tensor> above;  // only two rows of tiles are held besides the result
  for (int64_t y = 0; y < x.size(2); y += in.stride) {
    const at::Tensor strip = x.narrow(2, y, std::min(in.tile, x.size(2) - y));
    std::vector<at::Tensor> row = compute_row(strip, function, in, out, above);
    if (!result.defined()) {
      result = at::empty({x.size(0), row[0].size(1), height, width}, row[0].options());
    }
    const int64_t top = y / in_scale * out_scale;
    const int64_t rows = std::min(out.stride, height - top);
    for (size_t i = 0; i < row.size(); ++i) {
      const int64_t left = static_cast<int64_t>(i) * out.stride;
      const int64_t columns = std::min(out.stride, width - left);
      result.narrow(2, top, rows)
          .narrow(3, left, columns)
          .copy_(row[i].narrow(2, 0, rows).narrow(3, 0, columns));
    }
    above = std::move(row);
  }
  return result;
}

}  // namespace

TileGrid plan_tiles(const VaeTiling& options, int64_t sample_size, int64_t scale_factor) {
  const double factor = options.tile_overlap_factor;
  if (!(factor >= 0 && factor < 1)) {
    fail<InputError>(kWhere, "the overlap is a part of the tile, at least 0 and below 1: got ",
                     factor, "; the usual value is 0.25");
  }
  const int64_t side =
      options.tile_sample_min_size == 0 ? sample_size : options.tile_sample_min_size;
  if (side < scale_factor) {
    fail<InputError>(kWhere, "a tile must hold at least one latent position, ", scale_factor,
                     " pixels: got a side of ", side, " pixels; choose a larger tile");
  }
  const int64_t tile = side / scale_factor;
  // The small term keeps a product such as 100 * 0.29 = 28.999... from losing a position.
  const auto overlap = static_cast<int64_t>(std::floor(static_cast<double>(tile) * factor + 1e-9));
  return {.tile = tile, .stride = std::max<int64_t>(1, tile - overlap), .scale = scale_factor};
}

at::Tensor tiled_decode(const at::Tensor& latents, const TileFunction& decode,
                        const TileGrid& grid) {
  return run_tiles(latents, decode, grid, 1, grid.scale);
}

at::Tensor tiled_encode(const at::Tensor& pixels, const TileFunction& encode,
                        const TileGrid& grid) {
  return run_tiles(pixels, encode, grid, grid.scale, 1);
}

at::Tensor sliced(const at::Tensor& x, const TileFunction& function) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& entry : x.split(1)) results.push_back(function(entry));
  return at::cat(results);
}

}  // namespace cachedit::models
