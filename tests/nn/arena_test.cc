// The buffers that blocks share between their operators.
#include "nn/arena.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace cachedit::nn {
namespace {

constexpr Arena::Slot kAllSlots[] = {Arena::kNormed, Arena::kQkv, Arena::kMlp};
static_assert(std::size(kAllSlots) == Arena::kSlots);

uintptr_t address(const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()); }

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  return address(a) < address(b) + b.nbytes() && address(b) < address(a) + a.nbytes();
}

TEST(Arena, GivesTensorsAsAskedFor) {
  Arena arena;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor t = arena.take(Arena::kQkv, {2, 3, 5}, dtype);
    EXPECT_EQ(t.sizes(), at::IntArrayRef({2, 3, 5}));
    EXPECT_EQ(t.scalar_type(), dtype);
    EXPECT_TRUE(t.device().is_cpu());
    EXPECT_TRUE(t.is_contiguous());
  }
  EXPECT_EQ(arena.take(Arena::kQkv, {0, 4}, at::kFloat).sizes(), at::IntArrayRef({0, 4}));
}

TEST(Arena, OneSlotGivesTheSameMemoryAgain) {
  Arena arena;
  for (const Arena::Slot slot : kAllSlots) {
    const uintptr_t first = address(arena.take(slot, {4, 100}, at::kBFloat16));
    EXPECT_EQ(address(arena.take(slot, {4, 100}, at::kBFloat16)), first);
    EXPECT_EQ(address(arena.take(slot, {400}, at::kBFloat16)), first) << "another shape";
    EXPECT_EQ(address(arena.take(slot, {2, 3, 7}, at::kBFloat16)), first) << "a smaller one";
    EXPECT_EQ(address(arena.take(slot, {4, 100}, at::kBFloat16)), first)
        << "it keeps the largest size";
  }
}

/// While all are held, writing one changes no other, whatever the others were asked for before.
TEST(Arena, SlotsNeverShareMemory) {
  Arena arena;
  for (const int64_t rows : {1, 50, 7, 200}) {
    std::vector<at::Tensor> held;
    for (const Arena::Slot slot : kAllSlots) {
      held.push_back(arena.take(slot, {rows + slot, 33}, at::kFloat));
      held.back().fill_(static_cast<double>(slot));
    }
    for (size_t i = 0; i < held.size(); ++i) {
      EXPECT_TRUE(held[i].equal(at::full_like(held[i], static_cast<double>(kAllSlots[i]))));
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(held[i], held[j])) << i << ", " << j;
    }
  }
}

TEST(Arena, GrowsToTheLargestSize) {
  Arena arena;
  const at::Tensor small = arena.take(Arena::kMlp, {8, 16}, at::kFloat);
  const at::Tensor large = arena.take(Arena::kMlp, {64, 16}, at::kFloat);
  EXPECT_FALSE(overlap(small, large)) << "who still holds the small one keeps its memory";
  EXPECT_GE(large.storage().nbytes(), 64u * 16 * 4);
  large.fill_(1);  // all of it is there
  EXPECT_EQ(large.sum().item<double>(), 64 * 16);
  EXPECT_EQ(address(arena.take(Arena::kMlp, {65, 15}, at::kFloat)), address(large));
  EXPECT_EQ(arena.take(Arena::kMlp, {1}, at::kFloat).storage().nbytes(), large.storage().nbytes());
}

TEST(Arena, AnotherElementTypeReplacesTheMemoryOnce) {
  Arena arena;
  const at::Tensor wide = arena.take(Arena::kNormed, {10, 10}, at::kFloat);
  const at::Tensor narrow = arena.take(Arena::kNormed, {10, 10}, at::kBFloat16);
  EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
  EXPECT_FALSE(overlap(wide, narrow));
  EXPECT_EQ(address(arena.take(Arena::kNormed, {5, 20}, at::kBFloat16)), address(narrow));
  EXPECT_EQ(arena.take(Arena::kNormed, {10, 10}, at::kFloat).scalar_type(), at::kFloat);
}

TEST(Arena, WithoutOneEveryTensorHasItsOwnMemory) {
  const at::Tensor a = take(nullptr, Arena::kQkv, {3, 40}, at::kBFloat16);
  const at::Tensor b = take(nullptr, Arena::kQkv, {3, 40}, at::kBFloat16);
  EXPECT_FALSE(overlap(a, b));
  EXPECT_EQ(a.sizes(), at::IntArrayRef({3, 40}));
  EXPECT_EQ(a.scalar_type(), at::kBFloat16);
  Arena arena;
  const at::Tensor c = take(&arena, Arena::kQkv, {3, 40}, at::kBFloat16);
  EXPECT_EQ(address(take(&arena, Arena::kQkv, {3, 40}, at::kBFloat16)), address(c));
}

}  // namespace
}  // namespace cachedit::nn
