#include "comm/collectives.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/fail.h"

namespace cachedit::comm {
namespace {

/// Below this, every rank sends everything to every other: one message delay in place of two.
constexpr int64_t kSmallBytes = 16 << 10;

size_t index(int64_t rank) { return static_cast<size_t>(rank); }

std::vector<Part> parts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Part> parts;
  for (size_t r = 0; r < tensors.size(); ++r) {
    parts.push_back({static_cast<int64_t>(r), tensors[r]});
  }
  return parts;
}

std::vector<at::Tensor> all_gather_parts(Communicator& group, const at::Tensor& local,
                                         std::vector<at::Tensor> receive, std::string_view what) {
  std::vector<Part> send;
  for (int64_t r = 0; r < group.size(); ++r) send.push_back({r, local});
  group.exchange(std::move(send), parts_of(receive), what).wait();
  return receive;
}

at::Tensor sum_in_order(const std::vector<at::Tensor>& terms) {
  const at::ScalarType type = terms[0].scalar_type();
  const bool narrow = at::isReducedFloatingType(type);
  at::Tensor sum = terms[0].to(narrow ? at::kFloat : type, /*non_blocking=*/false, /*copy=*/true);
  for (size_t r = 1; r < terms.size(); ++r) sum.add_(terms[r].to(sum.scalar_type()));
  return sum.to(type);
}

/// Boundaries of `count` elements in as many even slices as there are ranks.
int64_t slice_begin(int64_t count, int64_t slices, int64_t i) {
  return count / slices * i + std::min(i, count % slices);
}

/// Every rank sums one slice and hands it to the others.
void reduce_by_slices(Communicator& group, at::Tensor flat) {
  const int64_t n = group.size(), count = flat.numel();
  const auto slice = [&](int64_t r) {
    const int64_t begin = slice_begin(count, n, r);
    return flat.narrow(0, begin, slice_begin(count, n, r + 1) - begin);
  };
  const at::Tensor own = slice(group.rank());
  std::vector<at::Tensor> send, terms;
  for (int64_t r = 0; r < n; ++r) {
    send.push_back(slice(r));
    terms.push_back(r == group.rank() ? own : at::empty_like(own));
  }
  std::vector<Part> outgoing = parts_of(send), incoming = parts_of(terms);
  outgoing.erase(outgoing.begin() + group.rank());
  incoming.erase(incoming.begin() + group.rank());
  group.exchange(std::move(outgoing), std::move(incoming), "all_reduce").wait();
  at::Tensor sum = sum_in_order(terms);
  own.copy_(sum);
  outgoing.clear();
  incoming.clear();
  for (int64_t r = 0; r < n; ++r) {
    if (r == group.rank()) continue;
    outgoing.push_back({r, own});
    incoming.push_back({r, slice(r)});
  }
  group.exchange(std::move(outgoing), std::move(incoming), "all_reduce").wait();
}

}  // namespace

Pending all_to_all(Communicator& group, const std::vector<at::Tensor>& send,
                   const std::vector<at::Tensor>& receive) {
  if (static_cast<int64_t>(send.size()) != group.size() || send.size() != receive.size()) {
    fail<CommError>("all_to_all", "needs a tensor to send and one to receive for each of ",
                    group.size(), " ranks: got ", send.size(), " and ", receive.size());
  }
  return group.exchange(parts_of(send), parts_of(receive), "all_to_all");
}

Pending rotate(Communicator& group, const std::vector<at::Tensor>& send,
               const std::vector<at::Tensor>& receive, std::string_view what) {
  const int64_t n = group.size();
  std::vector<Part> outgoing, incoming;
  for (const at::Tensor& tensor : send) outgoing.push_back({(group.rank() + 1) % n, tensor});
  for (const at::Tensor& tensor : receive) {
    incoming.push_back({(group.rank() + n - 1) % n, tensor});
  }
  return group.exchange(std::move(outgoing), std::move(incoming), what);
}

Pending rotate(Communicator& group, const at::Tensor& send, const at::Tensor& receive) {
  return rotate(group, std::vector<at::Tensor>{send}, {receive}, "rotate");
}

at::Tensor all_gather(Communicator& group, const at::Tensor& local,
                      const std::vector<int64_t>& sizes, int64_t dim) {
  if (dim < 0) dim += local.dim();
  if (static_cast<int64_t>(sizes.size()) != group.size() ||
      sizes[index(group.rank())] != local.size(dim)) {
    fail<CommError>("all_gather", "needs the sizes of all ", group.size(),
                    " ranks, this one's as it is: got sizes ", sizes, " and a tensor of ",
                    local.sizes(), ", dimension ", dim);
  }
  if (group.size() == 1) return local;
  std::vector<int64_t> shape = local.sizes().vec();
  // Pieces of the first dimension that is larger than 1 lie one after the other in the result.
  const bool outermost =
      std::all_of(shape.begin(), shape.begin() + dim, [](int64_t size) { return size == 1; });
  shape[index(dim)] = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  at::Tensor whole = outermost ? at::empty(shape, local.options()) : at::Tensor();
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    shape[index(dim)] = size;
    pieces.push_back(outermost ? whole.narrow(dim, begin, size)
                               : at::empty(shape, local.options()));
    begin += size;
  }
  pieces = all_gather_parts(group, local, std::move(pieces), "all_gather");
  return outermost ? whole : at::cat(pieces, dim);
}

void all_reduce_sum(Communicator& group, at::Tensor& tensor) {
  if (group.size() == 1 || tensor.numel() == 0) return;
  if (!tensor.is_contiguous()) {
    fail<CommError>("all_reduce", "the tensor must be contiguous: got sizes ", tensor.sizes(),
                    ", strides ", tensor.strides());
  }
  if (static_cast<int64_t>(tensor.nbytes()) > kSmallBytes) {
    reduce_by_slices(group, tensor.view(-1));
    return;
  }
  std::vector<at::Tensor> terms;
  for (int64_t r = 0; r < group.size(); ++r) terms.push_back(at::empty_like(tensor));
  tensor.copy_(sum_in_order(all_gather_parts(group, tensor, std::move(terms), "all_reduce")));
}

std::vector<double> all_reduce_sum(Communicator& group, const std::vector<double>& values) {
  if (group.size() == 1) return values;
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<double>());
  tensor = tensor.to(group.device());
  all_reduce_sum(group, tensor);
  tensor = tensor.cpu();
  const double* data = tensor.const_data_ptr<double>();
  return {data, data + values.size()};
}

void broadcast(Communicator& group, at::Tensor& tensor, int64_t root) {
  if (group.size() == 1) return;
  if (group.rank() != root) {
    group.exchange({}, {{root, tensor}}, "broadcast").wait();
    return;
  }
  std::vector<Part> send;
  for (int64_t r = 0; r < group.size(); ++r) {
    if (r != root) send.push_back({r, tensor});
  }
  group.exchange(std::move(send), {}, "broadcast").wait();
}

std::vector<std::string> all_gather_text(Communicator& group, const std::string& text) {
  const auto bytes = static_cast<int64_t>(text.size());
  std::vector<at::Tensor> lengths;
  for (int64_t r = 0; r < group.size(); ++r) {
    lengths.push_back(at::empty({1}, at::TensorOptions(at::kLong).device(group.device())));
  }
  at::Tensor own_length = at::empty({1}, at::kLong).fill_(bytes).to(group.device());
  lengths = all_gather_parts(group, own_length, std::move(lengths), "all_gather_text");
  at::Tensor own = at::empty({bytes}, at::kByte);
  std::copy(text.begin(), text.end(), own.mutable_data_ptr<uint8_t>());
  std::vector<at::Tensor> pieces;
  pieces.reserve(lengths.size());
  for (const at::Tensor& length : lengths) {
    pieces.push_back(at::empty({length.item<int64_t>()}, own.options().device(group.device())));
  }
  pieces = all_gather_parts(group, own.to(group.device()), std::move(pieces), "all_gather_text");
  std::vector<std::string> texts;
  for (const at::Tensor& piece : pieces) {
    const at::Tensor local = piece.cpu();
    const auto* data = reinterpret_cast<const char*>(local.const_data_ptr<uint8_t>());
    texts.emplace_back(data, data + local.numel());
  }
  return texts;
}

void barrier(Communicator& group) { all_reduce_sum(group, std::vector<double>{0}); }

void require_equal(Communicator& group, std::string_view what, const std::string& text) {
  const std::vector<std::string> texts = all_gather_text(group, text);
  std::string faults;
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    std::istringstream first(texts[0]), other(texts[r]);
    std::string expected, got;
    while (true) {
      const bool more = static_cast<bool>(std::getline(first, expected));
      const bool more_of_other = static_cast<bool>(std::getline(other, got));
      if (!more) expected = "nothing";
      if (!more_of_other) got = "nothing";
      if (expected != got || (!more && !more_of_other)) break;
    }
    faults += c10::str(faults.empty() ? "" : "; ", group.name_of(static_cast<int64_t>(r)), " has '",
                       got, "' where ", group.name_of(0), " has '", expected, "'");
  }
  if (faults.empty()) return;
  fail<CommError>("comm", "all ranks must have the same ", what, ": ", faults,
                  "; start all of them with the same arguments and files");
}

}  // namespace cachedit::comm
