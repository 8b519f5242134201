#include "parallel/trade.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

namespace cachedit::parallel {
namespace {

int64_t total(const Shares& shares) {
  return std::accumulate(shares.sizes.begin(), shares.sizes.end(), int64_t{0});
}

/// `tensor` cut in the ranks' shares, as views.
std::vector<at::Tensor> cut(const at::Tensor& tensor, const Shares& shares) {
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t size : shares.sizes) {
    pieces.push_back(tensor.narrow(shares.dim, begin, size));
    begin += size;
  }
  return pieces;
}

}  // namespace

Arriving Arriving::then(std::function<at::Tensor(const at::Tensor&)> last) && {
  return Arriving(std::move(pending_), [assemble = std::move(assemble_), last = std::move(last)] {
    return last(assemble());
  });
}

Arriving trade(comm::Communicator& group, const at::Tensor& tensor, const Shares& split,
               const Shares& join) {
  const auto own = static_cast<size_t>(group.rank());
  const std::vector<at::Tensor> outgoing = cut(tensor, split);
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(split.dim)] = split.sizes[own];
  shape[static_cast<size_t>(join.dim)] = total(join);
  // Where the shares lie one after the other in the result, they are received in their places.
  const bool in_place =
      std::all_of(shape.begin(), shape.begin() + join.dim, [](int64_t size) { return size == 1; });
  at::Tensor whole;
  std::vector<at::Tensor> incoming;
  if (in_place) {
    whole = at::empty(shape, tensor.options());
    incoming = cut(whole, join);
  } else {
    for (const int64_t size : join.sizes) {
      shape[static_cast<size_t>(join.dim)] = size;
      const bool is_own = incoming.size() == own;
      incoming.push_back(is_own ? outgoing[own] : at::empty(shape, tensor.options()));
    }
  }
  std::vector<comm::Part> send, receive;
  for (size_t r = 0; r < incoming.size(); ++r) {
    if (r == own) continue;
    send.push_back({static_cast<int64_t>(r), outgoing[r]});
    receive.push_back({static_cast<int64_t>(r), incoming[r]});
  }
  comm::Pending pending = group.exchange(std::move(send), std::move(receive), "ulysses");
  if (in_place) {
    incoming[own].copy_(outgoing[own]);
    return Arriving(std::move(pending), [whole] { return whole; });
  }
  return Arriving(std::move(pending),
                  [pieces = std::move(incoming), dim = join.dim] { return at::cat(pieces, dim); });
}

}  // namespace cachedit::parallel
