#include "parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "attention/select.h"
#include "parallel/mesh.h"
#include "support/attention_reference.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"

namespace cachedit::parallel {

using attention::Inputs;
using attention::Result;

Inputs whole_inputs(const Sequence& s) {
  const int64_t kv_heads = s.kv_heads == 0 ? s.heads : s.kv_heads;
  const auto in = test::random_attention_inputs({.batch = s.batch,
                                                 .heads = s.heads,
                                                 .kv_heads = kv_heads,
                                                 .queries = s.tokens,
                                                 .keys = s.tokens,
                                                 .head_dim = s.head_dim},
                                                s.dtype, /*seed=*/5);
  return {.query = in.query,
          .key = in.key,
          .value = in.value,
          .enable_gqa = kv_heads != s.heads,
          .return_lse = true};
}

at::Tensor part_of(const at::Tensor& whole, const std::vector<int64_t>& lengths, int64_t rank,
                   int64_t dim) {
  const int64_t begin = std::accumulate(lengths.begin(), lengths.begin() + rank, int64_t{0});
  return whole.narrow(dim, begin, lengths[static_cast<size_t>(rank)]);
}

Inputs part_of(const Inputs& whole, const std::vector<int64_t>& lengths, int64_t rank) {
  Inputs part = whole;
  for (at::Tensor* t : {&part.query, &part.key, &part.value}) *t = part_of(*t, lengths, rank, 1);
  if (part.mask.defined()) {
    const bool for_keys = part.mask.dim() <= 2 || part.mask.size(-2) == 1;
    part.mask = part_of(part.mask, lengths, rank, part.mask.dim() - (for_keys ? 1 : 2));
  }
  return part;
}

std::unique_ptr<attention::Attention> backend(const std::string& name) {
  return attention::make_attention(name, at::kCPU);
}

RankCall ulysses_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                      const UlyssesOptions& options) {
  return [&inner, lengths, options](comm::Communicator& group, const Inputs& part) {
    return (*make_ulysses(inner, group, lengths, options))(part);
  };
}

RankCall ring_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                   const RingOptions& options) {
  return [&inner, lengths, options](comm::Communicator& group, const Inputs& part) {
    return (*make_ring(inner, group, lengths, options))(part);
  };
}

RankCall usp_call(const attention::Attention& inner, const std::vector<int64_t>& lengths,
                  const UspOptions& options) {
  return [&inner, lengths, options](comm::Communicator& world, const Inputs& part) {
    const Mesh mesh(world, {.ring = options.ring, .ulysses = options.ulysses});
    std::vector<int64_t> rows, row;
    for (int64_t r = 0; r < options.ring; ++r) {
      const auto begin = lengths.begin() + r * options.ulysses;
      const std::vector<int64_t> of_row(begin, begin + options.ulysses);
      rows.push_back(std::accumulate(of_row.begin(), of_row.end(), int64_t{0}));
      if (r == mesh.ring().rank()) row = of_row;
    }
    const auto ring = make_ring(inner, mesh.ring(), rows, options.ring_options);
    return (*make_ulysses(*ring, mesh.ulysses(), row, options.ulysses_options))(part);
  };
}

void expect_as_one_rank(const Inputs& whole, const std::vector<int64_t>& lengths,
                        const RankCall& call, double tolerance, double lse_tolerance) {
  constexpr double kNoKey = -std::numeric_limits<double>::infinity();
  Inputs asked = whole;
  asked.return_lse = true;
  const Result want = (*backend("native"))(asked);
  test::run_ranks(static_cast<int64_t>(lengths.size()), [&](comm::Communicator& world) {
    const int64_t rank = world.rank();
    SCOPED_TRACE(c10::str("rank ", rank, " of ", lengths));
    const Result got = call(world, part_of(whole, lengths, rank));
    EXPECT_EQ(got.out.scalar_type(), whole.query.scalar_type());
    EXPECT_LE(test::max_abs_error(got.out, part_of(want.out, lengths, rank, 1)), tolerance);
    if (!whole.return_lse) {
      EXPECT_FALSE(got.lse.defined());
      return;
    }
    ASSERT_TRUE(got.lse.defined());
    EXPECT_EQ(got.lse.scalar_type(), at::kFloat);
    const at::Tensor lse = part_of(want.lse, lengths, rank, 2);
    const at::Tensor none = lse == kNoKey;
    ASSERT_EQ(got.lse.sizes(), lse.sizes());
    EXPECT_TRUE(at::equal(got.lse == kNoKey, none));
    EXPECT_LE(test::max_abs_error(got.lse.masked_fill(none, 0), lse.masked_fill(none, 0)),
              lse_tolerance);
  });
}

at::Tensor gathered_out(const Inputs& whole, const std::vector<int64_t>& lengths,
                        const RankCall& call) {
  std::vector<at::Tensor> parts(lengths.size());
  test::run_ranks(static_cast<int64_t>(lengths.size()), [&](comm::Communicator& world) {
    parts[static_cast<size_t>(world.rank())] =
        call(world, part_of(whole, lengths, world.rank())).out;
  });
  return at::cat(parts, 1);
}

comm::Pending RecordingCommunicator::start(std::vector<comm::Part> send,
                                           std::vector<comm::Part> receive, std::string_view what) {
  events_.push_back("start");
  auto pending =
      std::make_shared<comm::Pending>(parent_.exchange(std::move(send), std::move(receive), what));
  return comm::Pending([this, pending] {
    pending->wait();
    events_.push_back("wait");
  });
}

}  // namespace cachedit::parallel
