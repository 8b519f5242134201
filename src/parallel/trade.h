// The exchange behind Ulysses: every rank gives away its share of one dimension and gets the whole
// of another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"

namespace cachedit::parallel {

/// Who has how much of a dimension.
struct Shares {
  int64_t dim = 0;
  std::vector<int64_t> sizes = {};  ///< of each rank
};

/// A tensor on its way.
class Arriving {
 public:
  Arriving(comm::Pending pending, std::function<at::Tensor()> assemble)
      : pending_(std::move(pending)), assemble_(std::move(assemble)) {}

  /// To be called once.
  at::Tensor wait() {
    pending_.wait();
    return assemble_();
  }

  /// The same with `last` done to the tensor at the end.
  Arriving then(std::function<at::Tensor(const at::Tensor&)> last) &&;

 private:
  comm::Pending pending_;
  std::function<at::Tensor()> assemble_;
};

/// `tensor` has all of `split.dim` and this rank's share of `join.dim`; what arrives has this
/// rank's share of `split.dim` and all of `join.dim`, in rank order, contiguous. Both are counted
/// from the first dimension.
Arriving trade(comm::Communicator& group, const at::Tensor& tensor, const Shares& split,
               const Shares& join);

}  // namespace cachedit::parallel
