#include "pipelines/latents.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <sstream>

#include "io/safetensors.h"
#include "support/temp_dir.h"

namespace cachedit::pipelines {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

TEST(Noise, IsTorchsToTheBit) {
  const io::SafetensorsFile golden(test::golden("noise") / "noise.safetensors");
  EXPECT_EQ(golden.header().tensors.size(), 27u);
  for (const auto& [name, entry] : golden.header().tensors) {
    SCOPED_TRACE(name);
    at::Generator generator = make_generator(std::stoull(split(name, '.')[1]));
    const at::Tensor want = golden.tensor(name);
    const at::Tensor got = draw_noise(want.sizes(), generator, want.scalar_type(), at::kCPU);
    EXPECT_TRUE(at::equal(got, want));
  }
}

TEST(Noise, SecondDrawGoesOnWhereTheFirstEnded) {
  at::Generator generator = make_generator(3), fresh = make_generator(3);
  const at::Tensor first = draw_noise({4, 5}, generator, at::kFloat, at::kCPU);
  const at::Tensor second = draw_noise({4, 5}, generator, at::kFloat, at::kCPU);
  EXPECT_TRUE(at::equal(first, draw_noise({4, 5}, fresh, at::kFloat, at::kCPU)));
  EXPECT_FALSE(at::equal(first, second));
}

TEST(PackedLatents, TokenHoldsAPatchOfEveryChannel) {
  const at::Tensor latents = at::arange(2 * 3 * 4 * 6).view({2, 3, 4, 6});
  const at::Tensor packed = pack_latents(latents);
  ASSERT_EQ(packed.sizes(), at::IntArrayRef({2, 6, 12}));
  // Token (row 1, column 2) of batch 1, channel 2, lower left value of its patch.
  EXPECT_EQ(packed[1][1 * 3 + 2][2 * 4 + 2].item<int64_t>(), latents[1][2][3][4].item<int64_t>());
  EXPECT_TRUE(at::equal(unpack_latents(packed, 2, 3), latents));
}

}  // namespace
}  // namespace cachedit::pipelines
