// Quantized linear layers that ranks share out: the scales are those of the whole weight and of
// whole rows of activations, so that the outputs are those of one process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cachedit/error.h"
#include "comm/collectives.h"
#include "nn/weight_quantizer.h"
#include "quantized_reference.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/tensor_compare.h"
#include "support/tiny_weights.h"

namespace cachedit::nn {
namespace {

using test::LayerFile;
using test::tiny_weight;
using ::testing::HasSubstr;

constexpr int64_t kIn = 768, kOut = 512;

/// Partial sums add up in another order, and each of them is rounded to the output's type.
constexpr double kTolerance = 2e-6;

struct Outcome {
  at::Tensor y;
  QuantizedLayer layer;
};

/// What the ranks give together, and the record of the last one.
Outcome shared(const LayerFile& file, const ShardRule& rule, int64_t ranks, const at::Tensor& x,
               QuantizationPlan plan, int64_t in = kIn, int64_t out = kOut,
               at::ScalarType dtype = at::kFloat) {
  Outcome outcome;
  test::run_ranks(ranks, [&](comm::Communicator& rank) {
    WeightOptions options{.dtype = dtype, .pack_linear = true};
    options.tensor_parallel = {.group = &rank, .rules = {rule}};
    options.quantization = plan;
    const WeightLoader loader(file.store(), options);
    const bool bias = file.store().contains("layer.bias");
    const Linear own(loader.root() / "layer", in, out, bias ? Bias::kYes : Bias::kNo);
    loader.finish();
    const bool rows = rule.shard == Shard::kRows;
    at::Tensor y;
    if (rows && rule.parts.size() == 2) {  // as FLUX's single block calls it
      const at::Tensor all = share_of(x, -1, rule, rank);
      const int64_t first = rule.parts[0] / ranks;
      y = own.run({.input = all.narrow(-1, 0, first),
                   .second = all.narrow(-1, first, all.size(-1) - first)});
    } else {
      y = own(rows ? share_of(x, -1, rule, rank) : x);
    }
    if (rule.shard == Shard::kColumns) {
      const std::vector<int64_t> sizes(static_cast<size_t>(ranks), out / ranks);
      y = comm::all_gather(rank, y, sizes, -1);
    }
    if (rank.rank() == ranks - 1) outcome = {y, loader.linear_layers().at(0)};
  });
  return outcome;
}

std::map<std::string, at::Tensor> plain_tensors(int64_t in = kIn, int64_t out = kOut) {
  return {{"layer.weight", tiny_weight("w.weight", {out, in})},
          {"layer.bias", tiny_weight("w.bias", {out})}};
}

class SharedType : public ::testing::TestWithParam<QuantType> {};
INSTANTIATE_TEST_SUITE_P(Types, SharedType, ::testing::ValuesIn(test::all_quant_types()),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST_P(SharedType, EqualsTheWholeLayer) {
  LayerFile file(plain_tensors());
  const at::Tensor x = tiny_weight("x", {2, 7, kIn}).clone();
  x.select(2, 700) *= 9;  // the largest number lies with one rank
  const at::Tensor want = file.load(kIn, kOut, GetParam())(x);
  for (const int64_t ranks : {2, 3}) {
    const std::vector<int64_t> parts = {ranks * 128, kIn - ranks * 128};
    for (const ShardRule& rule :
         {ShardRule{"layer", Shard::kColumns}, ShardRule{"layer", Shard::kGatheredColumns},
          ShardRule{"layer", Shard::kRows}, ShardRule{"layer", Shard::kRows, parts}}) {
      if (rule.shard != Shard::kRows && ranks == 3) continue;  // 512 outputs
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << static_cast<int>(rule.shard) << ", "
                                      << rule.parts.size() << " parts");
      const Outcome got = shared(file, rule, ranks, x, {.type = GetParam()});
      EXPECT_EQ(got.layer.type, GetParam()) << got.layer.note;
      EXPECT_LE(test::relative_error(got.y, want), kTolerance);
    }
  }
}

TEST_P(SharedType, StoredWeightsAreSharedAsTheyAre) {
  LayerFile plain(plain_tensors());
  const LinearWeight held = quantized(
      {.values = tiny_weight("w.weight", {kOut, kIn}), .scales = {}, .file = {}}, GetParam(), 64);
  LayerFile file({{"layer.weight", held.values},
                  {"layer.weight_scale", held.scales},
                  {"layer.bias", tiny_weight("w.bias", {kOut})}});
  const at::Tensor x = tiny_weight("x", {1, 7, kIn});
  const at::Tensor want = plain.load(kIn, kOut, GetParam())(x);
  for (const ShardRule& rule :
       {ShardRule{"layer", Shard::kColumns}, ShardRule{"layer", Shard::kRows, {256, 512}}}) {
    const Outcome got = shared(file, rule, 2, x, {.type = GetParam()});
    EXPECT_LE(test::relative_error(got.y, want), kTolerance);
    EXPECT_LE(static_cast<double>(got.layer.stored_bytes),
              0.53 * static_cast<double>(held.values.nbytes()) +
                  static_cast<double>(held.scales.nbytes()));
  }
}

TEST_P(SharedType, HalfPrecisionSumsDifferByTheirRoundingOnly) {
  LayerFile file(plain_tensors());
  const at::Tensor x = tiny_weight("x", {1, 7, kIn}).to(at::kBFloat16);
  const WeightOptions options{.dtype = at::kBFloat16, .pack_linear = true};
  const at::Tensor want = file.load(kIn, kOut, GetParam(), options)(x);
  const Outcome got =
      shared(file, {"layer", Shard::kRows}, 2, x, {.type = GetParam()}, kIn, kOut, at::kBFloat16);
  // One output is rounded once, the other three times: both shares and their sum. A rounding to
  // bf16 is 1.1e-3 to 1.6e-3 of the norm; measured, 1.8e-3.
  EXPECT_LE(test::relative_error(got.y.to(at::kFloat), want.to(at::kFloat)), 2.5e-3);
}

TEST_P(SharedType, NumbersThatAreNotFiniteReachEveryRank) {
  LayerFile file(plain_tensors());
  at::Tensor x = tiny_weight("x", {1, 3, kIn}).clone();
  x[0][1][700] = std::numeric_limits<float>::quiet_NaN();
  const Outcome got = shared(file, {"layer", Shard::kRows}, 2, x, {.type = GetParam()});
  EXPECT_FALSE(at::isfinite(got.y[0][1]).any().item<bool>());
  const at::Tensor none = tiny_weight("x", {1, 3, kIn}).clone().zero_();
  const Outcome zero = shared(file, {"layer", Shard::kRows}, 2, none, {.type = GetParam()});
  EXPECT_LE(test::max_abs_error(zero.y[0][0], file.store().tensor("layer.bias")), 0);
}

TEST(SharedFallback, BlocksAndGroupsThatAShareCutsGetATypeThatItDoesNot) {
  constexpr int64_t kCutIn = 192, kCutOut = 192;
  LayerFile file(plain_tensors(kCutIn, kCutOut));
  const at::Tensor x = tiny_weight("x", {1, 7, kCutIn});
  const auto expect = [&](QuantType asked, Shard shard, std::optional<QuantType> got_type,
                          bool fallback) {
    const Outcome got =
        shared(file, {"layer", shard}, 2, x,
               {.type = asked, .group_size = 64, .per_tensor_fallback = fallback}, kCutIn, kCutOut);
    EXPECT_EQ(got.layer.type, got_type) << name_of(asked);
    EXPECT_THAT(got.layer.note, HasSubstr("does not end between two scales"));
    const at::Tensor want = file.load(kCutIn, kCutOut, got_type)(x);
    EXPECT_LE(test::relative_error(got.y, want), kTolerance) << name_of(asked);
  };
  const auto block = QuantType::kFloat8PerBlock;
  for (const Shard shard : {Shard::kColumns, Shard::kRows}) {
    expect(block, shard, QuantType::kFloat8PerTensor, true);
    expect(block, shard, std::nullopt, false);
  }
  expect(QuantType::kInt4WeightOnly, Shard::kRows, QuantType::kInt8WeightOnly, true);
  expect(QuantType::kInt4WeightOnly, Shard::kRows, std::nullopt, false);
}

TEST(SharedFallback, StoredBlocksThatAShareCutsAreUnpacked) {
  constexpr int64_t kCutIn = 192, kCutOut = 192;
  for (const QuantType type : {QuantType::kFloat8PerBlock, QuantType::kInt4WeightOnly}) {
    const LinearWeight held = quantized(
        {.values = tiny_weight("w.weight", {kCutOut, kCutIn}), .scales = {}, .file = {}}, type, 64);
    LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
    const at::Tensor x = tiny_weight("x", {1, 7, kCutIn}).to(at::kBFloat16).to(at::kFloat);
    const at::Tensor exact =
        at::linear(x.to(at::kDouble), dequantized(held, at::kFloat).to(at::kDouble));
    const bool float8 = type == QuantType::kFloat8PerBlock;
    const Outcome got = shared(file, {"layer", Shard::kRows}, 2, x, {}, kCutIn, kCutOut);
    EXPECT_EQ(got.layer.type, float8 ? QuantType::kFloat8WeightOnly : QuantType::kInt8WeightOnly);
    EXPECT_LE(test::relative_error(got.y, exact), float8 ? 0.04 : 0.01) << "rounded twice";
    const Outcome plain = shared(file, {"layer", Shard::kRows}, 2, x,
                                 {.per_tensor_fallback = false}, kCutIn, kCutOut);
    EXPECT_EQ(plain.layer.type, std::nullopt);
    EXPECT_LE(test::relative_error(plain.y, exact), 1e-5);
  }
}

TEST(SharedFallback, RanksThatDoNotDivideAreNamed) {
  const LinearWeight held =
      quantized({.values = tiny_weight("w.weight", {kOut, kIn}), .scales = {}, .file = {}},
                QuantType::kInt8PerRow, 64);
  LayerFile file({{"layer.weight", held.values}, {"layer.weight_scale", held.scales}});
  test::expect_error<UnsupportedError>(
      [&] {
        shared(file, {"layer", Shard::kColumns}, 3, {}, {});
      },
      HasSubstr("needs 512 to divide by the number of ranks: got 3"));
}

}  // namespace
}  // namespace cachedit::nn
