#include "comm/collective_checks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "comm/collectives.h"

namespace cachedit::test {
namespace {

using comm::Communicator;
using comm::Part;
using comm::Pending;

/// How many rows `from` sends to `to`; some send nothing, some only to few.
int64_t rows(int64_t from, int64_t to) { return (3 * from + 5 * to + from * to) % 4; }

uint64_t seed_of(int64_t from, int64_t to, int64_t round = 0) {
  return static_cast<uint64_t>(10000 * round + 100 * from + to);
}

/// Sends and receives of an uneven all_to_all, and what must come.
struct Exchange {
  std::vector<at::Tensor> send, receive, want;
};

Exchange uneven(const Communicator& group, at::ScalarType dtype, int64_t round = 0) {
  Exchange all;
  for (int64_t r = 0; r < group.size(); ++r) {
    const int64_t out = rows(group.rank(), r), in = rows(r, group.rank());
    all.send.push_back(numbers({out, 5}, dtype, seed_of(group.rank(), r, round)));
    all.want.push_back(numbers({in, 5}, dtype, seed_of(r, group.rank(), round)));
    all.receive.push_back(at::empty({in, 5}, dtype));
  }
  return all;
}

void require_received(const Exchange& all, const std::string& what) {
  for (size_t r = 0; r < all.want.size(); ++r) {
    require_same(all.receive[r], all.want[r], c10::str(what, " from rank ", r));
  }
}

void uneven_splits_of_every_dtype(Communicator& group) {
  for (const at::ScalarType dtype : all_dtypes()) {
    const Exchange all = uneven(group, dtype);
    comm::all_to_all(group, all.send, all.receive).wait();
    require_received(all, c10::str(dtype));
  }
}

void shards_without_elements(Communicator& group) {
  std::vector<at::Tensor> send, receive;
  for (int64_t r = 0; r < group.size(); ++r) {
    send.push_back(numbers({group.rank() == 0 ? r : 0, 3}, at::kFloat, seed_of(0, r)));
    receive.push_back(at::empty({r == 0 ? group.rank() : 0, 3}, at::kFloat));
  }
  comm::all_to_all(group, send, receive).wait();
  require_same(receive[0], numbers({group.rank(), 3}, at::kFloat, seed_of(0, group.rank())),
               "from rank 0");
  const at::Tensor none = at::empty({0, 4}, at::kHalf);
  const std::vector<int64_t> sizes(static_cast<size_t>(group.size()), 0);
  require_same(comm::all_gather(group, none, sizes, 0), none, "gathered");
}

void strided_tensors_are_sent(Communicator& group) {
  const int64_t n = group.size();
  // Columns of one matrix, rows of its transpose, and one number repeated.
  const at::Tensor matrix = numbers({6, 3 * n}, at::kBFloat16, seed_of(group.rank(), 0));
  std::vector<at::Tensor> columns, turned, repeated, receive, receive_turned, receive_repeated;
  for (int64_t r = 0; r < n; ++r) {
    columns.push_back(matrix.narrow(1, 3 * r, 3));
    turned.push_back(matrix.narrow(1, 3 * r, 3).t());
    repeated.push_back(matrix[0][r].expand({4, 2}));
    receive.push_back(at::empty({6, 3}, at::kBFloat16));
    receive_turned.push_back(at::empty({3, 6}, at::kBFloat16));
    receive_repeated.push_back(at::empty({4, 2}, at::kBFloat16));
  }
  comm::all_to_all(group, columns, receive).wait();
  comm::all_to_all(group, turned, receive_turned).wait();
  comm::all_to_all(group, repeated, receive_repeated).wait();
  for (int64_t r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    const at::Tensor theirs = numbers({6, 3 * n}, at::kBFloat16, seed_of(r, 0));
    const at::Tensor want = theirs.narrow(1, 3 * group.rank(), 3);
    require_same(receive[i], want, "columns");
    require_same(receive_turned[i], want.t(), "rows of the transpose");
    require_same(receive_repeated[i], theirs[0][group.rank()].expand({4, 2}), "one number");
  }
}

void several_parts_for_one_rank_keep_their_order(Communicator& group) {
  const int64_t n = group.size(), next = (group.rank() + 1) % n, last = (group.rank() + n - 1) % n;
  std::vector<Part> send, receive;
  std::vector<at::Tensor> want;
  int64_t size = 1;
  for (const at::ScalarType dtype : all_dtypes()) {
    send.push_back({next, numbers({size}, dtype, seed_of(group.rank(), next, size))});
    receive.push_back({last, at::empty({size}, dtype)});
    want.push_back(numbers({size}, dtype, seed_of(last, group.rank(), size)));
    size = 3 * size % 40001;  // from one element to messages that no transport buffers
  }
  const std::vector<Part> received = receive;
  group.exchange(std::move(send), std::move(receive), "parts").wait();
  for (size_t i = 0; i < want.size(); ++i) require_same(received[i].tensor, want[i], "part");
}

void only_some_ranks_take_part(Communicator& group) {
  const int64_t last = group.size() - 1;
  const at::Tensor want = numbers({1000}, at::kDouble, 7), got = at::empty({1000}, at::kDouble);
  std::vector<Part> send, receive;
  if (group.rank() == 0) send.push_back({last, want});
  if (group.rank() == last) receive.push_back({0, got});
  group.exchange(std::move(send), std::move(receive), "first to last").wait();
  if (group.rank() == last) require_same(got, want, "from rank 0");
}

void operations_finish_in_any_order(Communicator& group) {
  const Exchange first = uneven(group, at::kFloat, 1), second = uneven(group, at::kLong, 2);
  const int64_t last = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor mine = numbers({50000}, at::kFloat, seed_of(group.rank(), 0, 3)),
                   got = at::empty({50000}, at::kFloat);
  Pending a = comm::all_to_all(group, first.send, first.receive);
  Pending b = comm::rotate(group, mine, got);
  Pending c = comm::all_to_all(group, second.send, second.receive);
  c.wait();
  require_received(second, "second");
  a.wait();
  require_received(first, "first");
  b.wait();
  b.wait();  // does nothing
  require_same(got, numbers({50000}, at::kFloat, seed_of(last, 0, 3)), "rotated");
}

void a_full_turn_of_the_ring(Communicator& group) {
  const int64_t n = group.size();
  at::Tensor held = numbers({2, 7}, at::kHalf, seed_of(group.rank(), 0));
  for (int64_t turn = 1; turn <= n; ++turn) {
    const at::Tensor next = at::empty_like(held);
    comm::rotate(group, held, next).wait();
    const int64_t owner = (group.rank() + n - turn) % n;
    require_same(next, numbers({2, 7}, at::kHalf, seed_of(owner, 0)), c10::str("turn ", turn));
    held = next;
  }
}

void gathering_along_every_dimension(Communicator& group) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kBool}) {
    for (const int64_t dim : {0, 1, 2, -1}) {
      std::vector<int64_t> sizes;
      std::vector<at::Tensor> shards;
      for (int64_t r = 0; r < group.size(); ++r) {
        std::vector<int64_t> shape = {1, 4, 6};  // 1: the case of pieces one after the other
        sizes.push_back((2 * r + 1) % 4 == 3 ? 0 : r + 1);
        shape[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = sizes.back();
        shards.push_back(numbers(shape, dtype, seed_of(r, dim + 3)));
      }
      const at::Tensor got =
          comm::all_gather(group, shards[static_cast<size_t>(group.rank())], sizes, dim);
      require_same(got, at::cat(shards, dim), c10::str(dtype, ", dimension ", dim));
    }
  }
}

void every_rank_broadcasts(Communicator& group) {
  for (int64_t root = 0; root < group.size(); ++root) {
    at::Tensor tensor = numbers({33}, at::kChar, seed_of(group.rank(), root));
    comm::broadcast(group, tensor, root);
    require_same(tensor, numbers({33}, at::kChar, seed_of(root, root)), c10::str("of ", root));
  }
}

void texts_of_every_kind(Communicator& group) {
  const auto text_of = [](int64_t rank) -> std::string {
    switch (rank % 4) {
      case 0:
        return "";
      case 1:
        return "röd äpple \xE2\x9C\x93 \xF0\x9F\x8D\x8E\nsecond line";
      case 2:
        return std::string("zero \0 within", 13);
      default:
        return std::string(100000, 'x') + c10::str(rank);
    }
  };
  const std::vector<std::string> got = comm::all_gather_text(group, text_of(group.rank()));
  require(static_cast<int64_t>(got.size()) == group.size(), "texts: ", got.size());
  for (int64_t r = 0; r < group.size(); ++r) {
    require(got[static_cast<size_t>(r)] == text_of(r), "text of rank ", r);
  }
}

}  // namespace

void require_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  require(got.scalar_type() == want.scalar_type(), what, ": dtype ", got.scalar_type(), " where ",
          want.scalar_type(), " was sent");
  require(got.sizes() == want.sizes(), what, ": sizes ", got.sizes(), " where ", want.sizes(),
          " were sent");
  if (got.numel() == 0) return;
  const at::Tensor a = got.contiguous().view(-1).view(at::kByte),
                   b = want.contiguous().view(-1).view(at::kByte);
  require(at::equal(a, b), what, ": other values than were sent");
}

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  if (dtype == at::kBool) return at::randint(0, 2, sizes, generator, at::kLong).to(dtype);
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    return at::randint(0, 100, sizes, generator, at::kLong).to(dtype);
  }
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> dtypes = {
      at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,      at::kChar,       at::kByte,
      at::kInt,   at::kLong,   at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  return dtypes;
}

std::vector<CollectiveCheck> exchange_checks() {
  return {{"UnevenSplitsOfEveryDtype", uneven_splits_of_every_dtype},
          {"ShardsWithoutElements", shards_without_elements},
          {"StridedTensorsAreSent", strided_tensors_are_sent},
          {"SeveralPartsForOneRankKeepTheirOrder", several_parts_for_one_rank_keep_their_order},
          {"OnlySomeRanksTakePart", only_some_ranks_take_part},
          {"OperationsFinishInAnyOrder", operations_finish_in_any_order},
          {"AFullTurnOfTheRing", a_full_turn_of_the_ring},
          {"GatheringAlongEveryDimension", gathering_along_every_dimension},
          {"EveryRankBroadcasts", every_rank_broadcasts},
          {"TextsOfEveryKind", texts_of_every_kind}};
}

std::vector<CollectiveCheck> collective_checks() {
  std::vector<CollectiveCheck> all = exchange_checks();
  for (const auto& more : {reduction_checks(), group_checks()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace cachedit::test
