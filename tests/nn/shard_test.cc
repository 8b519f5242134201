#include "nn/shard.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/divisors.h"
#include "cachedit/error.h"
#include "comm/collectives.h"
#include "io/safetensors.h"
#include "nn/layers.h"
#include "nn/weight_scope.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kIn = 24, kOut = 12;

class ShardTest : public ::testing::Test {
 protected:
  ShardTest() {
    std::map<std::string, at::Tensor> tensors;
    for (const char* layer : {"blocks.0.up", "blocks.0.down", "blocks.0.sub.up", "other"}) {
      const std::string name = layer;
      tensors[name + ".weight"] = test::tiny_weight(name + ".weight", {kOut, kIn});
      tensors[name + ".bias"] = test::tiny_weight(name + ".bias", {kOut});
    }
    io::write_safetensors(folder_ / "model.safetensors", tensors);
  }

  /// y of "blocks.0.up" on every rank, put together, against the whole layer; true where the layer
  /// gives the whole y itself.
  void expect_same_as_whole(const ShardRule& rule, bool whole_output, double tolerance = 1e-6) {
    const auto store = io::WeightStore::open(folder_.path());
    const at::Tensor x = test::tiny_weight("x", {2, 5, kIn});
    const Linear whole(WeightLoader(store, {}).root() / "blocks.0.up", kIn, kOut);
    const at::Tensor want = whole(x);
    for (const int64_t ranks : {1, 2, 3, 4, 6}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      test::run_ranks(ranks, [&](comm::Communicator& rank) {
        const WeightLoader loader(store, {.tensor_parallel = {.group = &rank, .rules = {rule}}});
        const Linear own(loader.root() / "blocks.0.up", kIn, kOut);
        at::Tensor y = own(rule.shard == Shard::kRows ? share_of(x, rank, rule.parts) : x);
        if (!whole_output) {
          const std::vector<int64_t> sizes(static_cast<size_t>(ranks), kOut / ranks);
          y = comm::all_gather(rank, y, sizes, -1);
        }
        EXPECT_LE(test::relative_error(y, want), tolerance);
        const int64_t shared = kIn * kOut / ranks;
        const int64_t bias = rule.shard == Shard::kRows ? kOut : kOut / ranks;
        EXPECT_EQ(loader.bytes(), 4 * (shared + bias));
      });
    }
  }

  /// The inputs that belong to this rank's columns of the weight.
  static at::Tensor share_of(const at::Tensor& x, const comm::Communicator& rank,
                             std::vector<int64_t> parts) {
    if (parts.empty()) parts = {kIn};
    std::vector<at::Tensor> pieces;
    int64_t begin = 0;
    for (const int64_t part : parts) {
      const int64_t own = part / rank.size();
      pieces.push_back(x.narrow(-1, begin + own * rank.rank(), own));
      begin += part;
    }
    return at::cat(pieces, -1);
  }

  test::TempDir folder_;
};

TEST_F(ShardTest, ColumnsGiveEachRankItsOutputs) {
  expect_same_as_whole({"blocks.*.up", Shard::kColumns}, false);
}

TEST_F(ShardTest, GatheredColumnsGiveAllOutputs) {
  expect_same_as_whole({"blocks.*.up", Shard::kGatheredColumns}, true);
}

TEST_F(ShardTest, RowsSumPartialOutputsAndAddTheBiasOnce) {
  expect_same_as_whole({"blocks.*.up", Shard::kRows}, true);
}

TEST_F(ShardTest, RowsOfSeveralPartsAreSharedOutPartByPart) {
  expect_same_as_whole({"blocks.*.up", Shard::kRows, {12, 12}}, true);
}

TEST_F(ShardTest, PatternsMatchWholeNames) {
  const auto store = io::WeightStore::open(folder_.path());
  test::run_ranks(2, [&](comm::Communicator& rank) {
    const WeightLoader loader(
        store, {.tensor_parallel = {.group = &rank, .rules = {{"blocks.*.up", Shard::kColumns}}}});
    EXPECT_NE((loader.root() / "blocks.0.up").shard_rule(), nullptr);
    EXPECT_NE((loader.root() / "blocks" / 17 / "up").shard_rule(), nullptr);
    for (const char* other : {"blocks.0.down", "blocks.0.sub.up", "blocks.up", "other", "up"}) {
      EXPECT_EQ((loader.root() / other).shard_rule(), nullptr) << other;
    }
  });
}

TEST_F(ShardTest, WholeRowsOfTheFileAreNotCopied) {
  const auto store = io::WeightStore::open(folder_.path());
  test::run_ranks(2, [&](comm::Communicator& rank) {
    const ShardRule rule{"other", Shard::kColumns};
    const WeightLoader loader(store, {.tensor_parallel = {.group = &rank, .rules = {rule}}});
    const at::Tensor own =
        (loader.root() / "other").take_share("weight", {kOut, kIn}, 0, rule, at::kFloat);
    const at::Tensor whole = store.tensor("other.weight");
    EXPECT_EQ(own.const_data_ptr(),
              whole.narrow(0, rank.rank() * kOut / 2, kOut / 2).const_data_ptr());
  });
}

TEST_F(ShardTest, SizesThatDoNotDivideAreRefused) {
  const auto store = io::WeightStore::open(folder_.path());
  test::expect_error<UnsupportedError>(
      [&] {
        test::run_ranks(5, [&](comm::Communicator& rank) {
          const WeightLoader loader(
              store, {.tensor_parallel = {.group = &rank, .rules = {{"other", Shard::kColumns}}}});
          const Linear own(loader.root() / "other", kIn, kOut);
        });
      },
      AllOf(HasSubstr("other.weight"), HasSubstr("needs 12 to divide"), HasSubstr("got 5")));
}

TEST_F(ShardTest, FaultsOfSharedTensorsAreListedAtTheEnd) {
  const auto store = io::WeightStore::open(folder_.path());
  test::expect_error<WeightError>(
      [&] {
        test::run_ranks(2, [&](comm::Communicator& rank) {
          const WeightLoader loader(
              store, {.tensor_parallel = {
                          .group = &rank,
                          .rules = {{"absent", Shard::kColumns}, {"other", Shard::kRows}}}});
          const Linear absent(loader.root() / "absent", kIn, kOut);
          const Linear other(loader.root() / "other", 2 * kIn, kOut);
          loader.finish({"blocks."});
        });
      },
      AllOf(HasSubstr("absent.weight [12, 24]"), HasSubstr("other.weight: the config asks for "
                                                           "[12, 48], the file has [12, 24]")));
}

TEST(Shard, DivisorsAreListedFromTwo) {
  EXPECT_EQ(divisors_text(30), "2, 3, 5, 6, 10, 15, 30");
  EXPECT_EQ(divisors_text(7), "7");
  EXPECT_EQ(divisors_text(1), "1");
}

}  // namespace
}  // namespace cachedit::nn
