// Sums over ranks, and what is counted of all that is sent.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "comm/collective_checks.h"
#include "comm/collectives.h"

namespace cachedit::test {
namespace {

using comm::Communicator;

constexpr int64_t kSmall = 1001;   // every rank sends everything to every other
constexpr int64_t kLarge = 20011;  // summed in slices, none of equal size

uint64_t seed_of(int64_t rank, int64_t count) { return static_cast<uint64_t>(100 * rank + count); }

/// All ranks must hold the same bits.
void require_same_on_all(Communicator& group, const at::Tensor& tensor, const std::string& what) {
  const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), tensor.numel());
  const at::Tensor all = comm::all_gather(group, tensor, sizes, 0);
  for (int64_t r = 0; r < group.size(); ++r) {
    require_same(all.narrow(0, r * tensor.numel(), tensor.numel()), tensor,
                 c10::str(what, ", rank ", r));
  }
}

/// Rounding of a sum in rank order: one rounding for each addition, one at the end.
void require_sum(Communicator& group, const at::Tensor& got, int64_t count, at::ScalarType dtype,
                 double rounding, double last_rounding) {
  at::Tensor sum = at::zeros({count}, at::kDouble), magnitude = at::zeros({count}, at::kDouble);
  for (int64_t r = 0; r < group.size(); ++r) {
    const at::Tensor term = numbers({count}, dtype, seed_of(r, count)).to(at::kDouble);
    sum += term;
    magnitude += term.abs();
  }
  const double additions = static_cast<double>(group.size() - 1);
  const at::Tensor bound =
      magnitude * (additions * rounding) * (1 + last_rounding) + sum.abs() * last_rounding;
  const at::Tensor excess = ((got.to(at::kDouble) - sum).abs() - bound).max();
  require(excess.item<double>() <= 0, dtype, " x ", count, ": off by ", excess.item<double>(),
          " more than rounding explains");
}

void sums_of_floating_dtypes(Communicator& group) {
  const double fp32 = std::pow(2, -24);
  struct Case {
    at::ScalarType dtype;
    double rounding, last_rounding;
  };
  for (const Case& c :
       {Case{at::kFloat, fp32, 0}, Case{at::kDouble, std::pow(2, -53), 0},
        Case{at::kHalf, fp32, std::pow(2, -11)}, Case{at::kBFloat16, fp32, std::pow(2, -8)}}) {
    for (const int64_t count : {int64_t{1}, kSmall, kLarge}) {
      at::Tensor tensor = numbers({count}, c.dtype, seed_of(group.rank(), count));
      comm::all_reduce_sum(group, tensor);
      // One rank has nothing to add, and nothing to round.
      require_sum(group, tensor, count, c.dtype, c.rounding,
                  group.size() == 1 ? 0 : c.last_rounding);
      require_same_on_all(group, tensor, c10::str(c.dtype, " x ", count));
    }
  }
}

void sums_of_float8(Communicator& group) {
  for (const int64_t count : {kSmall, kLarge}) {
    at::Tensor tensor = numbers({count}, at::kFloat8_e4m3fn, seed_of(group.rank(), count));
    comm::all_reduce_sum(group, tensor);
    at::Tensor want = numbers({count}, at::kFloat8_e4m3fn, seed_of(0, count)).to(at::kFloat);
    for (int64_t r = 1; r < group.size(); ++r) {
      want += numbers({count}, at::kFloat8_e4m3fn, seed_of(r, count)).to(at::kFloat);
    }
    require_same(tensor, want.to(at::kFloat8_e4m3fn), c10::str("float8 x ", count));
  }
}

void sums_of_integers(Communicator& group) {
  for (const at::ScalarType dtype : {at::kInt, at::kLong}) {
    for (const int64_t count : {kSmall, kLarge}) {
      at::Tensor tensor = numbers({count}, dtype, seed_of(group.rank(), count));
      comm::all_reduce_sum(group, tensor);
      at::Tensor want = at::zeros({count}, dtype);
      for (int64_t r = 0; r < group.size(); ++r) {
        want += numbers({count}, dtype, seed_of(r, count));
      }
      require_same(tensor, want, c10::str(dtype, " x ", count));
    }
  }
}

void sums_of_many_dimensions(Communicator& group) {
  at::Tensor tensor = at::full({2, 3, 4}, static_cast<double>(group.rank() + 1), at::kFloat);
  comm::all_reduce_sum(group, tensor);
  const double n = static_cast<double>(group.size());
  require_same(tensor, at::full({2, 3, 4}, n * (n + 1) / 2, at::kFloat), "cube");
  at::Tensor none = at::empty({0, 3}, at::kFloat);
  comm::all_reduce_sum(group, none);
  require_same(none, at::empty({0, 3}, at::kFloat), "nothing");
}

void sums_of_numbers(Communicator& group) {
  const double rank = static_cast<double>(group.rank()), n = static_cast<double>(group.size());
  const std::vector<double> got = comm::all_reduce_sum(group, {rank, 0.5, -1e300});
  require(got == std::vector<double>{n * (n - 1) / 2, 0.5 * n, -1e300 * n}, "sums: ", got);
  require(comm::all_reduce_sum(group, std::vector<double>{}).empty(), "sums of nothing");
  const double infinity = std::numeric_limits<double>::infinity();
  require(comm::all_reduce_sum(group, {infinity})[0] == infinity, "infinity");
}

/// What the last step has sent: exactly `bytes` in so many messages.
void require_traffic(Communicator& group, int64_t bytes, int64_t messages, int64_t exchanges,
                     const std::string& what) {
  const comm::Traffic& got = group.traffic();
  require(got.bytes_sent == bytes && got.messages_sent == messages && got.exchanges == exchanges,
          what, ": ", got.bytes_sent, " bytes, ", got.messages_sent, " messages, ", got.exchanges,
          " exchanges, not ", bytes, ", ", messages, ", ", exchanges);
  require(got.seconds >= 0 && std::isfinite(got.seconds), what, ": ", got.seconds, " seconds");
  group.reset_traffic();
}

void what_is_sent_is_counted(Communicator& group) {
  const int64_t n = group.size(), others = n - 1;
  group.reset_traffic();
  std::vector<at::Tensor> send, receive;
  int64_t bytes = 0, messages = 0;
  for (int64_t r = 0; r < n; ++r) {
    send.push_back(at::zeros({r, 3}, at::kBFloat16));
    receive.push_back(at::empty({group.rank(), 3}, at::kBFloat16));
    if (r == group.rank() || r == 0) continue;  // nothing to itself, and rank 0 gets nothing
    bytes += 6 * r;
    ++messages;
  }
  comm::all_to_all(group, send, receive).wait();
  require_traffic(group, bytes, messages, 1, "all_to_all");

  const at::Tensor local = at::zeros({5, 7}, at::kFloat);
  comm::all_gather(group, local, std::vector<int64_t>(static_cast<size_t>(n), 5), 0);
  require_traffic(group, 140 * others, others, n > 1 ? 1 : 0, "all_gather");

  const at::Tensor next = at::empty_like(local);
  comm::rotate(group, local, next).wait();
  require_traffic(group, n > 1 ? 140 : 0, n > 1 ? 1 : 0, 1, "rotate");

  at::Tensor small = at::zeros({100}, at::kFloat);
  comm::all_reduce_sum(group, small);
  require_traffic(group, 400 * others, others, n > 1 ? 1 : 0, "small all_reduce");

  at::Tensor large = at::zeros({kLarge}, at::kDouble);
  comm::all_reduce_sum(group, large);
  const int64_t slice = kLarge / n + (group.rank() < kLarge % n ? 1 : 0);
  require_traffic(group, n > 1 ? 8 * (kLarge - slice + others * slice) : 0, 2 * others,
                  n > 1 ? 2 : 0, "large all_reduce");

  comm::broadcast(group, small, 0);
  require_traffic(group, group.rank() == 0 ? 400 * others : 0, group.rank() == 0 ? others : 0,
                  n > 1 ? 1 : 0, "broadcast");
}

}  // namespace

std::vector<CollectiveCheck> reduction_checks() {
  return {{"SumsOfFloatingDtypes", sums_of_floating_dtypes},
          {"SumsOfFloat8", sums_of_float8},
          {"SumsOfIntegers", sums_of_integers},
          {"SumsOfManyDimensions", sums_of_many_dimensions},
          {"SumsOfNumbers", sums_of_numbers},
          {"WhatIsSentIsCounted", what_is_sent_is_counted}};
}

}  // namespace cachedit::test
