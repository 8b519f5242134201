#include "parallel/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cachedit::parallel {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 4 * 8, kBlocks = 3;

/// 4 heads of 8, three blocks that share their matrices out and add one tensor up.
TransformerShape toy() {
  TransformerShape shape;
  shape.heads = 4;
  shape.head_dim = 8;
  shape.latent_channels = 16;
  shape.blocks = {{.count = kBlocks,
                   .token_flops = 1000,
                   .projection_flops = 100,
                   .meanwhile_flops = 400,
                   .sums = {Tokens::kJoint},
                   .gathered = {96},
                   .vector_weights = 5000,
                   .moved = {.whole = 50, .shared = 60}}};
  shape.image_flops = 10;
  shape.vector_weights = 700;
  shape.shared_weights = 80000;
  shape.whole_weights = 20000;
  shape.attention_peak = {.whole = 64, .shared = 192};
  shape.mlp_peak = {.whole = 96, .shared = 400};
  return shape;
}

Workload work() { return {.image_tokens = 48, .text_tokens = 16}; }

Machine machine() {
  return {.gemm_flops = 1e6, .attention_flops = 5e5, .bandwidth = 1e7, .latency = 1e-4};
}

int64_t sent_by_attention(const TransformerShape& shape, const Workload& w, const Layout& layout) {
  TransformerShape attention_only = shape;
  attention_only.blocks[0].sums.clear();
  attention_only.blocks[0].gathered.clear();
  // Without the 8 bytes that all ranks exchange after a step.
  return predict_traffic(attention_only, w, layout, 0).bytes_sent - 8 * (layout.world() - 1);
}

const LayoutCost& find(const std::vector<LayoutCost>& costs, const Layout& layout) {
  return *std::find_if(costs.begin(), costs.end(),
                       [&](const LayoutCost& cost) { return cost.layout == layout; });
}

TEST(CostModel, OneRankComputesEverythingAndSendsNothing) {
  const LayoutCost cost = cost_of(toy(), work(), {}, machine());
  const double gemm = kBlocks * 64 * 1000.0 + 48 * 10.0;
  const double attention = kBlocks * 4.0 * 64 * 64 * kWidth;
  EXPECT_DOUBLE_EQ(gemm_flops(toy(), work()), gemm);
  EXPECT_DOUBLE_EQ(attention_flops(toy(), work()), attention);
  EXPECT_DOUBLE_EQ(cost.seconds, gemm / 1e6 + attention / 5e5);
  EXPECT_DOUBLE_EQ(cost.compute_seconds, cost.seconds);
  EXPECT_EQ(cost.communication_seconds, 0);
  EXPECT_EQ(cost.bytes_sent, 0);
  EXPECT_EQ(cost.messages, 0);
  EXPECT_EQ(cost.bytes_once, 0);
  EXPECT_EQ(cost.weight_bytes, 2 * 100000);
  EXPECT_EQ(cost.activation_bytes, 64 * 2 * (96 + 400));
}

TEST(CostModel, MemoryBoundWorkCountsWhereTheBandwidthIsKnown) {
  Machine m = machine();
  const double without = cost_of(toy(), work(), {}, m).seconds;
  m.memory_bandwidth = 1e6;
  const double elements = kBlocks * (64 * (50 + 60.0) + 5000) + 700;
  EXPECT_NEAR(cost_of(toy(), work(), {}, m).seconds - without, 2 * elements / 1e6, 1e-9);
  // Tensor parallelism shares only a part of it out.
  const double shared = kBlocks * (64 * (50 + 60 / 2.0) + 5000 / 2.0) + 700;
  m.bandwidth = 1e30;
  m.latency = 0;
  const double at_two = cost_of(toy(), work(), {.tp = 2}, m).seconds;
  m.memory_bandwidth = 0;
  EXPECT_NEAR(at_two - cost_of(toy(), work(), {.tp = 2}, m).seconds, 2 * shared / 1e6, 1e-9);
}

TEST(CostModel, TheRingMergesPartialResultsUnlessItGathers) {
  Workload w = work();
  Machine m = machine();
  m.memory_bandwidth = 1e6;
  const double merging = cost_of(toy(), w, {.ring = 4}, m).compute_seconds;
  w.ring.rotate_method = RingRotateMethod::kAllGather;
  const double gathering = cost_of(toy(), w, {.ring = 4}, m).compute_seconds;
  // 16 tokens, four times: an output of bf16, and the sum in fp32, read and written.
  EXPECT_NEAR(merging - gathering, kBlocks * 16 * 4 * kWidth * (2 + 4 + 4) / 1e6, 1e-9);
}

// DeepSpeed-Ulysses: four all-to-alls of N/P tokens, of which (P - 1)/P leave the rank.
TEST(CostModel, UlyssesSendsFourTensorsByItsPapersFormula) {
  for (const int64_t ranks : {2, 4}) {
    const Layout layout = {.ulysses = ranks};
    EXPECT_EQ(sent_by_attention(toy(), work(), layout),
              kBlocks * 4 * (64 / ranks) * kWidth * 2 * (ranks - 1) / ranks);
    const comm::Traffic all = predict_traffic(toy(), work(), layout, 0);
    EXPECT_EQ(all.messages_sent, kBlocks * 4 * (ranks - 1) + (ranks - 1));
  }
}

// Ring Attention: the keys and values of N/P tokens, P - 1 times.
TEST(CostModel, RingPassesKeysAndValuesOnByItsPapersFormula) {
  for (const int64_t ranks : {2, 4, 8}) {
    const Layout layout = {.ring = ranks};
    Workload w = work();
    const int64_t expected = kBlocks * 2 * (ranks - 1) * (64 / ranks) * kWidth * 2;
    EXPECT_EQ(sent_by_attention(toy(), w, layout), expected);
    w.ring.rotate_method = RingRotateMethod::kAllGather;
    EXPECT_EQ(sent_by_attention(toy(), w, layout), expected);
  }
}

// USP: Ulysses among its ranks; the ring passes on the tokens of a Ulysses group for its heads.
TEST(CostModel, UspSendsBoth) {
  const Layout layout = {.ring = 2, .ulysses = 4};
  const int64_t ulysses = 4 * (64 / 8) * kWidth * 2 * 3 / 4;
  const int64_t ring = 2 * 1 * (64 / 2) * (kWidth / 4) * 2;
  EXPECT_EQ(sent_by_attention(toy(), work(), layout), kBlocks * (ulysses + ring));
}

TEST(CostModel, Float8HalvesAllButTheKeysAndAddsScales) {
  Workload w = work();
  w.ulysses.float8 = true;
  const int64_t rows = (64 / 2) * (4 / 2);  // tokens times heads that leave the rank
  EXPECT_EQ(sent_by_attention(toy(), w, {.ulysses = 2}), kBlocks * rows * (3 * (8 + 4) + 8 * 2));
}

TEST(CostModel, UnevenPartsAreCountedForEachRank) {
  TransformerShape shape = toy();
  shape.heads = 3;
  Workload w = {.image_tokens = 5, .text_tokens = 2, .batch = 2};
  w.ulysses.anything = true;
  // Tokens 3 + 1 and 2 + 1, heads 2 and 1.
  shape.blocks[0].sums.clear();
  shape.blocks[0].gathered.clear();
  const Layout layout = {.ulysses = 2};
  const int64_t row = 2 * 8 * 2;  // batch, head_dim, bytes
  EXPECT_EQ(predict_traffic(shape, w, layout, 0).bytes_sent,
            kBlocks * row * (3 * 4 * 1 + 3 * 2) + 8);
  EXPECT_EQ(predict_traffic(shape, w, layout, 1).bytes_sent,
            kBlocks * row * (3 * 3 * 2 + 4 * 1) + 8);
}

TEST(CostModel, TensorParallelismAddsUpInTwoExchangesOrInOne) {
  TransformerShape shape = toy();
  shape.blocks[0].gathered.clear();
  Workload w = {.image_tokens = 1500, .text_tokens = 500};
  const int64_t bytes = 2000 * kWidth * 2;
  const comm::Traffic slices = predict_traffic(shape, w, {.tp = 4}, 0);
  EXPECT_EQ(slices.bytes_sent, kBlocks * 2 * bytes * 3 / 4 + 8 * 3);
  EXPECT_EQ(slices.messages_sent, kBlocks * 6 + 3);
  w = work();  // 4 KiB: whole tensors to everybody
  const comm::Traffic whole = predict_traffic(shape, w, {.tp = 4}, 0);
  EXPECT_EQ(whole.bytes_sent, kBlocks * 3 * 64 * kWidth * 2 + 8 * 3);
  EXPECT_EQ(whole.messages_sent, kBlocks * 3 + 3);
}

TEST(CostModel, GatheredVectorsGoToEveryRank) {
  TransformerShape shape = toy();
  shape.blocks[0].sums.clear();
  Workload w = work();
  w.batch = 5;
  w.steps = 7;
  shape.vector_steps = 4;
  EXPECT_EQ(predict_traffic(shape, w, {.tp = 2}, 1).bytes_sent, 8);
  const comm::Traffic once = predict_once(shape, w, {.tp = 2}, 1);
  EXPECT_EQ(once.bytes_sent, kBlocks * 7 * 5 * 48 * 2);
  EXPECT_EQ(once.messages_sent, kBlocks * 2) << "of the first 4 steps, and of the last 3";
  // Their weights are read twice in the 7 steps, too; the model takes 4 steps a time.
  Machine m = machine();
  m.memory_bandwidth = 1e6;
  const double together = cost_of(shape, w, {.tp = 2}, m).compute_seconds;
  shape.vector_steps = 1;
  EXPECT_NEAR(cost_of(shape, w, {.tp = 2}, m).compute_seconds - together,
              0.75 * (kBlocks * 5000 / 2 + 700) * 2 / 1e6, 1e-9);
}

TEST(CostModel, CfgHalvesThePassesAndExchangesTheVelocity) {
  Workload w = work();
  w.branches = 2;
  const double both = cost_of(toy(), w, {}, machine()).seconds;
  EXPECT_DOUBLE_EQ(both, 2 * cost_of(toy(), work(), {}, machine()).seconds);
  const LayoutCost cost = cost_of(toy(), w, {.cfg = 2}, machine());
  EXPECT_DOUBLE_EQ(cost.compute_seconds, both / 2);
  EXPECT_EQ(cost.bytes_sent, 48 * 16 * 2 + 8);
  EXPECT_EQ(cost.messages, 2);
}

TEST(CostModel, TheLatentsAreCollectedOnce) {
  EXPECT_EQ(predict_once(toy(), work(), {.ring = 2, .ulysses = 2}, 3).bytes_sent, 3 * 12 * 16 * 2);
  TransformerShape shape = toy();
  shape.blocks[0].gathered.clear();
  EXPECT_EQ(predict_once(shape, work(), {.tp = 4}, 3).bytes_sent, 0);
}

TEST(CostModel, ComputationHidesWhatAsyncUlyssesSends) {
  Workload w = work();
  Machine m = machine();
  m.latency = 0;
  const Layout layout = {.ulysses = 2};
  const LayoutCost sync = cost_of(toy(), w, layout, m);
  EXPECT_DOUBLE_EQ(sync.exposed_seconds, sync.communication_seconds);
  w.ulysses.async = true;
  const LayoutCost async = cost_of(toy(), w, layout, m);
  EXPECT_EQ(async.communication_seconds, sync.communication_seconds);
  // A projection takes 3.2 ms, a tensor 0.1 ms: only the keys, sent last, show.
  const double tensor = 32 * kWidth * 2 / 2 / 1e7;
  EXPECT_NEAR(async.exposed_seconds, kBlocks * tensor + 8 / 1e7, 1e-12);
  m.overlap = false;
  EXPECT_DOUBLE_EQ(cost_of(toy(), w, layout, m).exposed_seconds, sync.exposed_seconds);
  m = machine();
  m.latency = 0;
  m.gemm_flops = 1e30;  // nothing to hide behind
  EXPECT_NEAR(cost_of(toy(), w, layout, m).exposed_seconds, sync.exposed_seconds, 1e-12);
}

TEST(CostModel, AttentionHidesTheRingUnlessItGathers) {
  Workload w = work();
  const Layout layout = {.ring = 4};
  const LayoutCost ring = cost_of(toy(), w, layout, machine());
  EXPECT_LT(ring.exposed_seconds, ring.communication_seconds);
  Machine m = machine();
  m.attention_flops = 1e30;
  const LayoutCost bare = cost_of(toy(), w, layout, m);
  EXPECT_DOUBLE_EQ(bare.exposed_seconds, bare.communication_seconds);
  w.ring.rotate_method = RingRotateMethod::kAllGather;
  const LayoutCost gather = cost_of(toy(), w, layout, machine());
  EXPECT_DOUBLE_EQ(gather.exposed_seconds, gather.communication_seconds);
}

TEST(CostModel, GatheringAllKeysTakesMemory) {
  Workload w = work();
  const int64_t p2p = cost_of(toy(), w, {.ring = 16}, machine()).activation_bytes;
  w.ring.rotate_method = RingRotateMethod::kAllGather;
  EXPECT_GT(cost_of(toy(), w, {.ring = 16}, machine()).activation_bytes, p2p);
}

TEST(CostModel, WeightsAreSharedOutByTensorParallelismAlone) {
  Workload w = work();
  w.resident_bytes = 1000;
  EXPECT_EQ(cost_of(toy(), w, {.tp = 4}, machine()).weight_bytes, 2 * (20000 + 20000) + 1000);
  EXPECT_EQ(cost_of(toy(), w, {.ulysses = 4}, machine()).weight_bytes, 2 * 100000 + 1000);
  EXPECT_LT(cost_of(toy(), w, {.ulysses = 4}, machine()).activation_bytes,
            cost_of(toy(), w, {.tp = 4}, machine()).activation_bytes);
}

TEST(CostModel, FasterMachinesAreNeverSlower) {
  for (const Layout& layout : {Layout{.ulysses = 4}, Layout{.ring = 4}, Layout{.tp = 4},
                               Layout{.ring = 2, .ulysses = 2, .tp = 2}}) {
    const double base = cost_of(toy(), work(), layout, machine()).seconds;
    for (double Machine::*rate :
         {&Machine::gemm_flops, &Machine::attention_flops, &Machine::bandwidth}) {
      Machine m = machine();
      m.*rate *= 2;
      EXPECT_LE(cost_of(toy(), work(), layout, m).seconds, base) << to_string(layout);
    }
    Machine slow = machine();
    slow.latency *= 10;
    EXPECT_GT(cost_of(toy(), work(), layout, slow).seconds, base) << to_string(layout);
  }
}

TEST(CostModel, MoreRanksOfAFastNetworkAreFaster) {
  Machine m = machine();
  m.bandwidth = 1e12;
  m.latency = 1e-9;
  double last = cost_of(toy(), work(), {}, m).seconds;
  for (const int64_t ranks : {2, 4}) {
    for (const Layout& layout : {Layout{.ulysses = ranks}, Layout{.ring = ranks}}) {
      EXPECT_LT(cost_of(toy(), work(), layout, m).seconds, 0.6 * last);
    }
    last = cost_of(toy(), work(), {.ulysses = ranks}, m).seconds;
  }
}

struct Refused {
  const char* name;
  Layout layout;
  Workload work;
  std::vector<std::string> says;
};

class WhyNot : public ::testing::TestWithParam<Refused> {};

TEST_P(WhyNot, NamesTheNumbers) {
  const Refused& c = GetParam();
  const std::string reason = why_not(toy(), c.work, c.layout);
  for (const std::string& text : c.says) EXPECT_THAT(reason, HasSubstr(text));
  EXPECT_NE(reason, "");
  const LayoutCost cost = cost_of(toy(), c.work, c.layout, machine());
  EXPECT_EQ(cost.infeasible, reason);
  EXPECT_EQ(cost.seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(
    CostModel, WhyNot,
    ::testing::Values(
        Refused{"Cfg", {.cfg = 2}, work(), {"cfg 2", "true CFG"}},
        Refused{"HeadsByTp", {.tp = 3}, work(), {"4 heads", "tp 3"}},
        Refused{"HeadsByUlysses", {.ulysses = 3}, work(), {"4 heads", "ulysses 3", "anything"}},
        Refused{"HeadsOfATpRank", {.ulysses = 4, .tp = 2}, work(), {"2 heads", "ulysses 4"}},
        Refused{"TextTokens",
                {.ulysses = 2},
                {.image_tokens = 48, .text_tokens = 15},
                {"15 text tokens", "2", "anything"}},
        Refused{"ImageTokens",
                {.ring = 2, .ulysses = 2},
                {.image_tokens = 50, .text_tokens = 16},
                {"50 image tokens", "4", "anything"}},
        Refused{
            "Float8",
            {.ulysses = 3},
            {.image_tokens = 48, .text_tokens = 15, .ulysses = {.anything = true, .float8 = true}},
            {"4 heads", "ulysses 3", "float8"}},
        Refused{"FewHeads",
                {.ulysses = 5},
                {.image_tokens = 50, .text_tokens = 15, .ulysses = {.anything = true}},
                {"ulysses 5", "4"}}),
    [](const auto& refused) { return refused.param.name; });

TEST(CostModel, AnythingTakesUnevenPartsAndSoDoesTheRing) {
  Workload w = {.image_tokens = 49, .text_tokens = 15};
  EXPECT_EQ(why_not(toy(), w, {.ring = 3}), "");
  EXPECT_NE(why_not(toy(), w, {.ulysses = 2}), "");
  w.ulysses.anything = true;
  EXPECT_EQ(why_not(toy(), w, {.ulysses = 3}), "");
}

TEST(CostModel, AllLayoutsAreListedOnceTheFastestFirst) {
  Workload w = work();
  w.branches = 2;
  const std::vector<LayoutCost> costs = compare_layouts(toy(), w, machine(), 4);
  EXPECT_EQ(costs.size(), 9u);  // 6 ways to write 4 as a product of three, 3 ways for 2
  for (size_t i = 0; i < costs.size(); ++i) {
    EXPECT_EQ(costs[i].layout.world(), 4);
    EXPECT_EQ(costs[i].best, i == 0);
    EXPECT_EQ(costs[i].infeasible, "");
    EXPECT_GE(costs[i].seconds, costs[i > 0 ? i - 1 : 0].seconds);
    EXPECT_EQ(&find(costs, costs[i].layout), &costs[i]) << "listed twice";
  }
}

TEST(CostModel, WhatCannotRunComesLastAndIsNeverTheBest) {
  const std::vector<LayoutCost> costs = compare_layouts(toy(), work(), machine(), 3);
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[0].layout, (Layout{.ring = 3}));
  EXPECT_TRUE(costs[0].best);
  for (size_t i : {1u, 2u}) EXPECT_NE(costs[i].infeasible, "");

  Machine m = machine();
  m.memory = 1000;
  for (const LayoutCost& cost : compare_layouts(toy(), work(), m, 4)) {
    EXPECT_FALSE(cost.best);
    EXPECT_NE(cost.infeasible, "");
  }
}

TEST(CostModel, TheMemoryLimitChoosesTensorParallelism) {
  Machine m = machine();
  m.bandwidth = 1e5;  // tensor parallelism sends the most
  const auto unlimited = compare_layouts(toy(), work(), m, 4);
  EXPECT_EQ(unlimited[0].layout.tp, 1);
  m.memory = static_cast<double>(find(unlimited, {.tp = 4}).weight_bytes +
                                 find(unlimited, {.tp = 4}).activation_bytes);
  const auto limited = compare_layouts(toy(), work(), m, 4);
  EXPECT_EQ(limited[0].layout, (Layout{.tp = 4}));
  const LayoutCost& too_large = find(limited, {.ulysses = 4});
  EXPECT_THAT(too_large.infeasible, HasSubstr("GiB"));
  EXPECT_GT(too_large.seconds, 0) << "what it would take is known all the same";
}

}  // namespace
}  // namespace cachedit::parallel
