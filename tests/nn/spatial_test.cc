// Layers on strips of a picture: what ranks compute together is what one computes alone.
#include "nn/spatial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "cachedit/error.h"
#include "io/safetensors.h"
#include "nn/layers.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor noise(const char* name, at::IntArrayRef shape) {
  return test::tiny_weight(name, shape) * 3;
}

/// A layer of each kind, 6 channels in.
struct Layers {
  Layers(const WeightScope& root, const ConvOptions& options)
      : conv(root / "conv", 6, 4, options), norm(root / "norm", 3, 6, 1e-6) {}
  Conv2d conv;
  GroupNorm norm;
};

Layers make_layers(const ConvOptions& options, at::ScalarType dtype = at::kFloat) {
  const test::TempDir folder;
  const int64_t k = options.kernel;
  io::write_safetensors(folder / "model.safetensors",
                        {{"conv.weight", test::tiny_weight("conv.weight", {4, 6, k, k})},
                         {"conv.bias", test::tiny_weight("conv.bias", {4})},
                         {"norm.weight", test::tiny_weight("norm.weight", {6})},
                         {"norm.bias", test::tiny_weight("norm.bias", {6})}});
  const auto store = io::WeightStore::open(folder.path());
  return {WeightLoader(store, {.dtype = dtype}).root(), options};
}

/// run(strip, shard) on ranks with so many rows each; all rows' results, as every rank has them.
at::Tensor on_ranks(const at::Tensor& whole, const std::vector<int64_t>& rows,
                    const std::function<at::Tensor(const at::Tensor&, const SpatialShard&)>& run) {
  std::vector<at::Tensor> results(rows.size());
  test::run_ranks(static_cast<int64_t>(rows.size()), [&](comm::Communicator& group) {
    const SpatialShard shard(group, rows);
    const at::Tensor strip = run(shard.strip_of(whole), shard);
    results[static_cast<size_t>(group.rank())] = shard.gather(strip, 2);
  });
  for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(results[0]));
  return results[0];
}

TEST(ShareRows, TheFirstRanksHaveOneMore) {
  EXPECT_THAT(share_rows(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(share_rows(6, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(share_rows(2, 3), ElementsAre(1, 1, 0));
  EXPECT_THAT(share_rows(5, 1), ElementsAre(5));
}

TEST(SpatialShard, StripsFollowTheResolution) {
  const at::Tensor whole = noise("whole", {1, 2, 20, 3});
  test::run_ranks(3, [&](comm::Communicator& group) {
    const SpatialShard shard(group, {2, 2, 1});
    const at::Tensor strip = shard.strip_of(whole);  // 4 rows to each
    EXPECT_TRUE(strip.equal(whole.narrow(2, group.rank() * 8, group.rank() == 2 ? 4 : 8)));
    EXPECT_TRUE(shard.gather(strip, 2).equal(whole));
    const at::Tensor tokens = strip.flatten(2).transpose(1, 2);
    EXPECT_TRUE(shard.gather(tokens, 1).equal(whole.flatten(2).transpose(1, 2)));
    EXPECT_THROW(shard.strip_of(whole.narrow(2, 0, 19)), CommError);
  });
}

TEST(SpatialShard, RanksWithoutRowsAreRefused) {
  test::run_ranks(2, [](comm::Communicator& group) {
    test::expect_error<CommError>([&] { SpatialShard(group, {1, 0}); }, HasSubstr("got 1 0"));
    test::expect_error<CommError>([&] { SpatialShard(group, {1, 1, 1}); }, HasSubstr("2 ranks"));
  });
}

TEST(SpatialShard, HalosAreTheNeighboursRows) {
  const at::Tensor whole = noise("whole", {2, 3, 6, 5});
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    test::run_ranks(3, [&](comm::Communicator& group) {
      const SpatialShard shard(group, {3, 1, 2});
      const int64_t begins[] = {0, 3, 4, 6}, rank = group.rank();
      const at::Tensor strip = shard.strip_of(whole).contiguous(format);
      for (const HaloSides sides : {HaloSides::kBoth, HaloSides::kBelow}) {
        Halo halo = shard.start_halo(strip, sides);
        halo.wait();
        ASSERT_EQ(halo.above.defined(), rank > 0 && sides == HaloSides::kBoth);
        ASSERT_EQ(halo.below.defined(), rank < 2);
        if (halo.above.defined()) {
          EXPECT_TRUE(halo.above.equal(whole.narrow(2, begins[rank] - 1, 1)));
        }
        if (halo.below.defined()) {
          EXPECT_TRUE(halo.below.equal(whole.narrow(2, begins[rank + 1], 1)));
        }
      }
    });
  }
}

/// The definition, in fp64.
at::Tensor normalized_in_double(const at::Tensor& x) {
  return at::group_norm(x.to(at::kDouble), 3, test::tiny_weight("norm.weight", {6}).to(at::kDouble),
                        test::tiny_weight("norm.bias", {6}).to(at::kDouble), 1e-6);
}

struct Strips {
  const char* name;
  std::vector<int64_t> rows;
};

class LayersOnStrips : public testing::TestWithParam<Strips> {
 protected:
  static at::Tensor picture() {
    int64_t rows = 0;
    for (const int64_t n : GetParam().rows) rows += n;
    return noise("picture", {2, 6, 2 * rows, 7});
  }
};

TEST_P(LayersOnStrips, ConvolveAsTheWhole) {
  for (const ConvOptions options :
       {ConvOptions{.kernel = 3, .padding = 1}, ConvOptions{.kernel = 1}}) {
    const Layers layers = make_layers(options);
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      // At the finest resolution, and at one where strips may be single rows.
      for (const at::Tensor& x : {picture(), picture().slice(2, 0, std::nullopt, 2)}) {
        const at::Tensor got =
            on_ranks(x, GetParam().rows, [&](const at::Tensor& strip, const SpatialShard& shard) {
              return layers.conv(strip.contiguous(format), &shard);
            });
        EXPECT_LE(test::relative_error(got, layers.conv(x)), 1e-6);
      }
    }
  }
}

TEST_P(LayersOnStrips, NormalizeAsTheWhole) {
  const Layers layers = make_layers({.kernel = 1});
  const at::Tensor x = picture() + 2;
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor got =
        on_ranks(x, GetParam().rows, [&](const at::Tensor& strip, const SpatialShard& shard) {
          return layers.norm(strip.contiguous(format), &shard);
        });
    // The mean is 14 standard deviations, so a rounding of it in fp32 weighs 14 times as much.
    EXPECT_LE(test::relative_error(got, normalized_in_double(x)), 3e-6);
    EXPECT_LE(test::relative_error(got, layers.norm(x)), 3e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, LayersOnStrips,
                         testing::Values(Strips{"OneRank", {5}}, Strips{"TwoRanks", {3, 2}},
                                         Strips{"SingleRows", {1, 1, 1, 1}},
                                         Strips{"SingleRowBetween", {3, 1, 2}},
                                         Strips{"EightRanks", {2, 2, 1, 1, 1, 1, 1, 1}}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ConvOnStrips, SendsOneRowToEachNeighbour) {
  const Layers layers = make_layers({.kernel = 3, .padding = 1});
  const at::Tensor x = noise("x", {2, 6, 12, 7});
  test::run_ranks(3, [&](comm::Communicator& group) {
    const SpatialShard shard(group, {4, 4, 4});
    layers.conv(shard.strip_of(x), &shard);
    const int64_t neighbours = group.rank() == 1 ? 2 : 1;
    EXPECT_EQ(group.traffic().messages_sent, neighbours);
    EXPECT_EQ(group.traffic().bytes_sent, neighbours * 2 * 6 * 7 * 4);
    group.reset_traffic();
    shard.start_halo(shard.strip_of(x), HaloSides::kBelow).wait();
    EXPECT_EQ(group.traffic().bytes_sent, group.rank() == 0 ? 0 : 2 * 6 * 7 * 4);
  });
}

TEST(ConvOnStrips, OtherKernelsAreRefused) {
  for (const ConvOptions options :
       {ConvOptions{.kernel = 3}, ConvOptions{.kernel = 5, .padding = 2},
        ConvOptions{.kernel = 3, .stride = 2, .padding = 1},
        ConvOptions{.kernel = 1, .stride = 2}}) {
    const Layers layers = make_layers(options);
    comm::SingleProcess group;
    const SpatialShard shard(group, {8});
    test::expect_error<UnsupportedError>(
        [&] {
          layers.conv(noise("x", {1, 6, 8, 8}), &shard);
        },
        AllOf(HasSubstr("strips"), HasSubstr(c10::str("kernel ", options.kernel))));
  }
}

TEST(GroupNormOnStrips, IsAccurateWhereTheMeanIsLargeAndStripsAreLong) {
  // 600 rows a rank: several blocks of the summation. Groups, entries and rows differ in their
  // means, so that merging matters.
  at::Tensor x = noise("x", {2, 6, 1200, 256}).contiguous(at::MemoryFormat::ChannelsLast);
  x.select(0, 0) += 100;
  x.select(1, 5) += 30;
  x.narrow(2, 900, 300) += 10;
  const Layers layers = make_layers({.kernel = 1});
  const at::Tensor got =
      on_ranks(x, {3, 3}, [&](const at::Tensor& strip, const SpatialShard& shard) {
        return layers.norm(strip, &shard);
      });
  EXPECT_LE(test::relative_error(got, normalized_in_double(x)), 1e-5);
}

TEST(GroupNormOnStrips, RoundsHalfPrecisionOnce) {
  const at::Tensor x = (noise("x", {2, 6, 10, 9}) + 4).to(at::kBFloat16);
  const Layers layers = make_layers({.kernel = 1}, at::kBFloat16);
  const at::Tensor got =
      on_ranks(x, {3, 2}, [&](const at::Tensor& strip, const SpatialShard& shard) {
        return layers.norm(strip, &shard);
      });
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  // Weight and bias are rounded in both; one rounding of the result is at most 2^-9 of it.
  const at::Tensor want = at::group_norm(
      x.to(at::kDouble), 3, test::tiny_weight("norm.weight", {6}).to(at::kBFloat16).to(at::kDouble),
      test::tiny_weight("norm.bias", {6}).to(at::kBFloat16).to(at::kDouble), 1e-6);
  EXPECT_LE(test::relative_error(got, want), 1.0 / 512);
}

TEST(GroupNormOnStrips, AllRanksUseTheSameBitsOfTheStatistics) {
  // Equal first rows of all strips; what else the strips hold differs.
  at::Tensor x = noise("x", {1, 6, 11, 9});
  for (const int64_t begin : {4, 8}) x.narrow(2, begin, 1).copy_(x.narrow(2, 0, 1));
  const Layers layers = make_layers({.kernel = 1});
  const at::Tensor got =
      on_ranks(x, {4, 4, 3}, [&](const at::Tensor& strip, const SpatialShard& shard) {
        return layers.norm(strip, &shard);
      });
  for (const int64_t begin : {4, 8}) {
    EXPECT_TRUE(got.narrow(2, begin, 1).equal(got.narrow(2, 0, 1)));
  }
}

TEST(GroupNormOnStrips, SendsTwoNumbersAGroup) {
  const Layers layers = make_layers({.kernel = 1});
  const at::Tensor x = noise("x", {2, 6, 12, 7});
  test::run_ranks(4, [&](comm::Communicator& group) {
    const SpatialShard shard(group, {1, 1, 1, 1});
    layers.norm(shard.strip_of(x), &shard);
    EXPECT_EQ(group.traffic().bytes_sent, 3 * (2 * 3 * 2 * 8));  // ranks, entries, groups, doubles
  });
}

}  // namespace
}  // namespace cachedit::nn
