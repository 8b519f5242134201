#include "parallel/sequence.h"

#include <numeric>

#include "base/fail.h"
#include "comm/collectives.h"

namespace cachedit::parallel {

std::vector<int64_t> split_lengths(int64_t total, int64_t parts) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < parts; ++i)
    lengths.push_back(total / parts + (i < total % parts ? 1 : 0));
  return lengths;
}

SequenceSplit::SequenceSplit(comm::Communicator& group, int64_t total)
    : group_(group), total_(total), lengths_(split_lengths(total, group.size())) {
  begin_ = std::accumulate(lengths_.begin(), lengths_.begin() + group.rank(), int64_t{0});
}

at::Tensor SequenceSplit::take(const at::Tensor& whole, int64_t dim) const {
  if (whole.size(dim) != total_) {
    fail<InputError>("parallel", "the sequence to split must have ", total_,
                     " tokens in dimension ", dim, ": got ", whole.sizes());
  }
  return whole.narrow(dim, begin_, local());
}

at::Tensor SequenceSplit::gather(const at::Tensor& part, int64_t dim) const {
  return comm::all_gather(group_, part, lengths_, dim);
}

std::vector<int64_t> joint_lengths(const std::vector<const SequenceSplit*>& splits) {
  std::vector<int64_t> lengths;
  for (const SequenceSplit* split : splits) {
    if (lengths.empty()) lengths.resize(split->lengths().size());
    for (size_t r = 0; r < lengths.size(); ++r) lengths[r] += split->lengths()[r];
  }
  return lengths;
}

}  // namespace cachedit::parallel
