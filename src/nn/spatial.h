// One picture shared out among ranks in strips of rows: what its layers exchange so that the strips
// together are what one process computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::nn {

/// `rows` in as even shares as whole rows allow: the first rows % ranks shares have one more.
std::vector<int64_t> share_rows(int64_t rows, int64_t ranks);

/// The rows next to a strip, on their way from the neighbours.
struct Halo {
  /// [B, C, 1, W]; undefined at the picture's edge, `above` also where only `below` was asked for.
  at::Tensor above;
  at::Tensor below;
  comm::Pending arrival;  ///< to be waited for before the rows are read

  void wait() { arrival.wait(); }
};

enum class HaloSides { kBoth, kBelow };

/// The ranks that share a picture, and their strips. What is called here, all ranks of the group
/// call together.
class SpatialShard {
 public:
  /// `rows`: each rank's rows at the coarsest resolution, at least 1. At another resolution the
  /// strips have the same multiple of these on every rank. `group` must outlive the object.
  SpatialShard(comm::Communicator& group, std::vector<int64_t> rows);

  /// This rank's rows of the whole picture [B, C, H, W] at any resolution, as a view.
  at::Tensor strip_of(const at::Tensor& whole) const;

  /// Starts to exchange the outermost rows of the strips `x` [B, C, h, W] with the neighbours.
  Halo start_halo(const at::Tensor& x, HaloSides sides) const;

  /// All ranks' strips one after the other along `dim`, where their sizes go by the rows: rows
  /// themselves, or tokens in row order.
  at::Tensor gather(const at::Tensor& strip, int64_t dim) const;

  /// Group norm of the strips x [B, C, h, W] by the statistics of the whole picture, the same bits
  /// of them on every rank.
  at::Tensor group_norm(const at::Tensor& x, int64_t groups, const at::Tensor& weight,
                        const at::Tensor& bias, double eps) const;

 private:
  /// The shares of the picture that ranks have, [ranks].
  at::Tensor weights(at::Device device) const;

  comm::Communicator& group_;
  std::vector<int64_t> rows_;
};

}  // namespace cachedit::nn
