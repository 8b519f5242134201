#include "nn/spatial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "comm/collectives.h"

namespace cachedit::nn {
namespace {

/// Sums of single-precision kernels run over so many numbers at most, for their accuracy (they add
/// one after the other) and so that a second pass finds them in the cache.
constexpr int64_t kBlockElements = int64_t{1} << 18;

/// Mean and variance (of the population) in fp64.
struct Moments {
  at::Tensor mean;
  at::Tensor variance;
};

/// Of sets [K, G, J], joined over K and J; `weights` [K] are the sets' shares, with sum 1. -> [G]
Moments joined(const Moments& sets, const at::Tensor& weights) {
  const at::Tensor w = weights.view({-1, 1, 1}) / sets.mean.size(2);
  const at::Tensor mean = (sets.mean * w).sum({0, 2});
  const at::Tensor off = sets.mean - mean.view({1, -1, 1});
  return {.mean = mean, .variance = ((sets.variance + off.square()) * w).sum({0, 2})};
}

/// Of each group of channels of x [1, C, H, W], channels last. -> [groups]
Moments group_moments(const at::Tensor& x, int64_t groups) {
  const int64_t channels = x.size(1), rows = x.size(2);
  // Statistics come in the dtype of these, which do not enter them.
  const at::TensorOptions wide =
      x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor unused_mean = at::zeros({channels}, wide),
                   unused_var = at::ones({channels}, wide);
  // Accelerators add in a tree and would only lose time by small pieces.
  const int64_t block =
      x.is_cpu() ? std::max<int64_t>(1, kBlockElements / (channels * x.size(3))) : rows;
  std::vector<at::Tensor> means, variances;
  std::vector<double> shares;
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t count = std::min(block, rows - begin);
    auto [mean, variance] = at::batch_norm_update_stats(x.narrow(2, begin, count), unused_mean,
                                                        unused_var, /*momentum=*/0.0);
    means.push_back(mean);
    variances.push_back(variance);
    shares.push_back(static_cast<double>(count) / static_cast<double>(rows));
  }
  const auto stacked = [&](const std::vector<at::Tensor>& parts) {
    return at::stack(parts).to(at::kDouble).view({-1, groups, channels / groups});
  };
  return joined({.mean = stacked(means), .variance = stacked(variances)},
                at::tensor(shares, at::kDouble).to(x.device()));
}

/// (x - mean) / sqrt(variance + eps) * weight + bias by channel, for x [1, C, H, W].
at::Tensor normalized(const at::Tensor& x, const Moments& by_group, const at::Tensor& weight,
                      const at::Tensor& bias, double eps) {
  const int64_t repeats = x.size(1) / by_group.mean.size(0);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto by_channel = [&](const at::Tensor& t) {
    return t.repeat_interleave(repeats).to(wide);
  };
  return at::batch_norm(x, weight.to(wide), bias.to(wide), by_channel(by_group.mean),
                        by_channel(by_group.variance), /*training=*/false, /*momentum=*/0.0, eps,
                        /*cudnn_enabled=*/false);
}

}  // namespace

std::vector<int64_t> share_rows(int64_t rows, int64_t ranks) {
  std::vector<int64_t> shares(static_cast<size_t>(ranks), rows / ranks);
  for (int64_t r = 0; r < rows % ranks; ++r) ++shares[static_cast<size_t>(r)];
  return shares;
}

SpatialShard::SpatialShard(comm::Communicator& group, std::vector<int64_t> rows)
    : group_(group), rows_(std::move(rows)) {
  const bool fits = static_cast<int64_t>(rows_.size()) == group.size() &&
                    std::all_of(rows_.begin(), rows_.end(), [](int64_t n) { return n >= 1; });
  if (!fits) {
    fail<CommError>("strips", "each of ", group.size(), " ranks needs at least one row: got ",
                    rows_);
  }
}

at::Tensor SpatialShard::strip_of(const at::Tensor& whole) const {
  const auto own = rows_.begin() + group_.rank();
  const int64_t total = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
  if (whole.size(2) % total != 0) {
    fail<CommError>("strips", "a picture shared out by ", total,
                    " rows needs a multiple of them: got shape ", whole.sizes());
  }
  const int64_t scale = whole.size(2) / total;
  return whole.narrow(2, std::accumulate(rows_.begin(), own, int64_t{0}) * scale, *own * scale);
}

Halo SpatialShard::start_halo(const at::Tensor& x, HaloSides sides) const {
  const int64_t rank = group_.rank(), batch = x.size(0), channels = x.size(1), width = x.size(3);
  const bool has_above = rank > 0, has_below = rank + 1 < group_.size();
  // Rows travel with channels last, as they usually lie, so that packing them is free.
  const auto row = [&](int64_t y) { return x.narrow(2, y, 1).permute({0, 2, 3, 1}); };
  const auto room = [&] { return at::empty({batch, 1, width, channels}, x.options()); };
  const auto as_row = [](const at::Tensor& t) { return t.permute({0, 3, 1, 2}); };
  Halo halo;
  std::vector<comm::Part> send, receive;
  if (has_above) send.push_back({rank - 1, row(0)});
  if (has_below) {
    receive.push_back({rank + 1, room()});
    halo.below = as_row(receive.back().tensor);
  }
  if (sides == HaloSides::kBoth) {
    if (has_below) send.push_back({rank + 1, row(x.size(2) - 1)});
    if (has_above) {
      receive.push_back({rank - 1, room()});
      halo.above = as_row(receive.back().tensor);
    }
  }
  halo.arrival = group_.exchange(std::move(send), std::move(receive), "halo");
  return halo;
}

at::Tensor SpatialShard::gather(const at::Tensor& strip, int64_t dim) const {
  const int64_t scale = strip.size(dim) / rows_[static_cast<size_t>(group_.rank())];
  std::vector<int64_t> sizes = rows_;
  for (int64_t& size : sizes) size *= scale;
  return comm::all_gather(group_, strip, sizes, dim);
}

at::Tensor SpatialShard::weights(at::Device device) const {
  const std::vector<double> rows(rows_.begin(), rows_.end());
  const at::Tensor shares = at::tensor(rows, at::kDouble);
  return (shares / shares.sum()).to(device);
}

at::Tensor SpatialShard::group_norm(const at::Tensor& x, int64_t groups, const at::Tensor& weight,
                                    const at::Tensor& bias, double eps) const {
  const at::Tensor strip = x.contiguous(at::MemoryFormat::ChannelsLast);
  const int64_t batch = x.size(0);
  std::vector<at::Tensor> means, variances;
  for (int64_t b = 0; b < batch; ++b) {
    const Moments own = group_moments(strip.narrow(0, b, 1), groups);
    means.push_back(own.mean);
    variances.push_back(own.variance);
  }
  // One message for both: [1, 2, B, groups] of each rank.
  const at::Tensor own =
      at::stack({at::stack(means), at::stack(variances)}).unsqueeze(0).contiguous();
  const std::vector<int64_t> one_each(rows_.size(), 1);
  const at::Tensor all = comm::all_gather(group_, own, one_each, 0).flatten(2).unsqueeze(3);
  Moments whole =
      joined({.mean = all.select(1, 0), .variance = all.select(1, 1)}, weights(strip.device()));
  whole = {.mean = whole.mean.view({batch, groups}),
           .variance = whole.variance.view({batch, groups})};
  std::vector<at::Tensor> results;
  for (int64_t b = 0; b < batch; ++b) {
    results.push_back(normalized(strip.narrow(0, b, 1),
                                 {.mean = whole.mean[b], .variance = whole.variance[b]}, weight,
                                 bias, eps));
  }
  return batch == 1 ? results[0] : at::cat(results, 0);
}

}  // namespace cachedit::nn
