// A picture of a quantized model does not depend on those that are drawn with it.
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "quantize_types.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"

namespace cachedit {
namespace {

/// Latents of the first picture; 16 image tokens, fewer than some kernels take at a time.
at::Tensor first_picture(const Pipeline& pipeline, const std::vector<std::string>& prompts,
                         int64_t images) {
  const GenerateResult result = pipeline.generate({.prompt = prompts,
                                                   .height = 64,
                                                   .width = 64,
                                                   .num_inference_steps = 3,
                                                   .num_images_per_prompt = images,
                                                   .seed = 3,
                                                   .output_type = OutputType::kLatent});
  return result.latents.narrow(0, 0, 1);
}

class QuantizedBatch : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Types, QuantizedBatch, ::testing::ValuesIn(test::kQuantizeTypes),
                         [](const auto& test) { return std::string(test.param); });

// Field case FR-29, for quantized layers. Sums in another order move activations over a rounding
// boundary now and then; another scale moves all of them, by 0.05 and more.
TEST_P(QuantizedBatch, LeavesItsFirstPictureAsItIsAlone) {
  const auto pipeline =
      load_pipeline(test::demo_model().string(),
                    {.dtype = "fp32", .quantize_config = QuantizeConfig{.quant_type = GetParam()}});
  const at::Tensor alone = first_picture(*pipeline, {"red apple"}, 1);
  EXPECT_LE(test::relative_error(first_picture(*pipeline, {"red apple"}, 2), alone), 1e-3);
  EXPECT_LE(test::relative_error(first_picture(*pipeline, {"red apple", "koala"}, 1), alone), 1e-3);
}

}  // namespace
}  // namespace cachedit
