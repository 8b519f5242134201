#include "nn/shard.h"

#include <ATen/ops/cat.h>

namespace cachedit::nn {

at::Tensor share_of(const at::Tensor& whole, int64_t dim, const ShardRule& rule,
                    const comm::Communicator& group) {
  std::vector<int64_t> parts = rule.parts;
  if (parts.empty()) parts.push_back(whole.size(dim));
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t part : parts) {
    const int64_t own = part / group.size();
    pieces.push_back(whole.narrow(dim, begin + own * group.rank(), own));
    begin += part;
  }
  return pieces.size() == 1 ? pieces[0].contiguous() : at::cat(pieces, dim);
}

}  // namespace cachedit::nn
