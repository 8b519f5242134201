#include "models/text_encoders/t5_position_bias.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cachedit::models {
namespace {

std::vector<int64_t> buckets(at::ArrayRef<int64_t> positions, int64_t num_buckets,
                             int64_t max_distance) {
  const at::Tensor got =
      t5_relative_buckets(at::tensor(positions, at::kLong), num_buckets, max_distance);
  return {got.const_data_ptr<int64_t>(), got.const_data_ptr<int64_t>() + got.numel()};
}

TEST(T5RelativeBuckets, AgreeWithTransformersAtTheEdges) {
  const std::vector<int64_t> positions = {-1000, -128, -127, -91, -90, -64, -63, -46, -45, -32,
                                          -31,   -23,  -22,  -16, -15, -12, -11, -8,  -7,  -1,
                                          0,     1,    7,    8,   11,  12,  16,  64,  128, 1000};
  EXPECT_THAT(buckets(positions, 32, 128),
              testing::ElementsAre(15, 15, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8,
                                   8, 7, 1, 0, 17, 23, 24, 24, 25, 26, 30, 31, 31));
  EXPECT_THAT(buckets(positions, 23, 64),
              testing::ElementsAre(10, 10, 10, 10, 10, 10, 10, 10, 10, 9, 9, 8, 8, 7, 7, 7, 6, 6, 5,
                                   1, 0, 12, 16, 17, 17, 18, 18, 21, 21, 21));
  EXPECT_THAT(buckets({-5, -1, 0, 1, 5}, 4, 2), testing::ElementsAre(1, 1, 0, 3, 3));
}

TEST(T5PositionBias, HoldsTheTableRowOfEachDistance) {
  const at::Tensor table = at::arange(16, at::kBFloat16).view({8, 2});  // 8 buckets, 2 heads
  const at::Tensor bias = t5_position_bias(table, 5, 20);
  ASSERT_EQ(bias.sizes(), at::IntArrayRef({1, 2, 5, 5}));
  EXPECT_EQ(bias.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(bias.is_contiguous());
  for (int64_t query = 0; query < 5; ++query) {
    for (int64_t key = 0; key < 5; ++key) {
      const int64_t bucket = buckets({key - query}, 8, 20)[0];
      for (int64_t head = 0; head < 2; ++head) {
        EXPECT_EQ(bias[0][head][query][key].item<float>(), table[bucket][head].item<float>())
            << "query " << query << ", key " << key << ", head " << head;
      }
    }
  }
}

}  // namespace
}  // namespace cachedit::models
