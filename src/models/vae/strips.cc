#include "models/vae/strips.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "base/log.h"
#include "comm/collectives.h"

namespace cachedit::models {

at::Tensor in_strips(const at::Tensor& x, const StripFunction& function, const StripPlan& plan,
                     comm::Communicator& group) {
  const int64_t working = std::min(plan.rows, group.size());
  if (working < group.size() && group.rank() == 0) {
    log_info(c10::str("[vae] a picture of ", plan.rows, " latent rows keeps ", working, " of ",
                      group.size(), " ranks busy"));
  }
  std::vector<int64_t> sizes = nn::share_rows(plan.rows, working);
  sizes.resize(static_cast<size_t>(group.size()), 0);
  const int64_t scale = plan.result_shape[2] / plan.rows;
  for (int64_t& size : sizes) size *= scale;

  std::vector<int64_t> shape = plan.result_shape;
  shape[2] = sizes[static_cast<size_t>(group.rank())];
  at::Tensor strip;
  if (group.rank() < working) {
    std::vector<int64_t> ranks(static_cast<size_t>(working));
    std::iota(ranks.begin(), ranks.end(), 0);
    comm::Subgroup workers(group, ranks);
    const nn::SpatialShard shard(workers, nn::share_rows(plan.rows, working));
    strip = function(shard.strip_of(x), shard);
    if (strip.sizes() != at::IntArrayRef(shape)) {
      fail<CommError>("strips", "a strip of ", at::IntArrayRef(shape), " was planned: got ",
                      strip.sizes());
    }
  } else {
    strip = at::empty(shape, plan.result_options);
  }
  // With channels last, the strips of one picture lie one after the other.
  return comm::all_gather(group, strip.permute({0, 2, 3, 1}), sizes, 1).permute({0, 3, 1, 2});
}

}  // namespace cachedit::models
