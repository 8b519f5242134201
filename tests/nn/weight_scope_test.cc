#include "nn/weight_scope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "io/safetensors.h"
#include "support/temp_dir.h"

namespace cachedit::nn {
namespace {

class WeightScopeTest : public ::testing::Test {
 protected:
  WeightScopeTest() {
    io::write_safetensors(folder_ / "model.safetensors",
                          {{"a.weight", at::arange(6, at::kFloat).view({2, 3})},
                           {"a.bias", at::ones({2}, at::kFloat)},
                           {"blocks.0.ids", at::arange(3, at::kLong)}});
  }
  io::WeightStore open() const { return io::WeightStore::open(folder_.path()); }
  test::TempDir folder_;
};

TEST_F(WeightScopeTest, BindsByNameWithoutCopying) {
  const auto store = open();
  const WeightLoader loader(store, {});
  const at::Tensor taken = (loader.root() / "a").take("weight", {2, 3});
  EXPECT_EQ(taken.const_data_ptr(), store.tensor("a.weight").const_data_ptr());
  EXPECT_EQ((loader.root() / "blocks" / 0).prefix(), "blocks.0.");
}

TEST_F(WeightScopeTest, ConvertsFloatsOnRequest) {
  const auto store = open();
  const WeightLoader loader(store, {.dtype = at::kBFloat16});
  EXPECT_EQ((loader.root() / "a").take("bias", {2}).scalar_type(), at::kBFloat16);
  EXPECT_EQ((loader.root() / "a").take_as("bias", {2}, at::kFloat).scalar_type(), at::kFloat);
  EXPECT_EQ(loader.root().dtype(), at::kBFloat16);
}

TEST_F(WeightScopeTest, WithoutRequestKeepsTheStoredDtype) {
  const auto store = open();
  EXPECT_EQ(WeightLoader(store, {}).root().dtype(), at::kFloat);
}

TEST_F(WeightScopeTest, FinishPassesWhenEverythingWasTaken) {
  const auto store = open();
  const WeightLoader loader(store, {});
  (loader.root() / "a").take("weight", {2, 3});
  (loader.root() / "a").take("bias", {2});
  EXPECT_THROW(loader.finish(), WeightError) << "blocks.0.ids is left over";
  EXPECT_NO_THROW(loader.finish({"blocks."}));
}

TEST_F(WeightScopeTest, FinishListsAllFaultsAtOnce) {
  const auto store = open();
  const WeightLoader loader(store, {});
  (loader.root() / "a").take("weight", {3, 2});
  (loader.root() / "b").take("weight", {1});
  try {
    loader.finish();
    FAIL() << "faults passed";
  } catch (const WeightError& error) {
    const std::string text = error.what();
    for (const char* part : {"missing (1)", "b.weight [1]", "a.weight: the config asks for [3, 2]",
                             "the file has [2, 3]", "a.bias [2]", "blocks.0.ids [3]"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " not in " << text;
    }
  }
}

}  // namespace
}  // namespace cachedit::nn
