// config.json of components that other programs quantized.
#include "models/quantization_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "models/flux/flux_config.h"
#include "models/text_encoders/clip_text_model.h"
#include "models/text_encoders/t5_encoder_model.h"
#include "support/expect_error.h"

namespace cachedit::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

io::JsonConfig config(const std::string& class_name, const std::string& quantization) {
  return {nlohmann::json::parse(R"({"architectures": [")" + class_name +
                                R"("], "quantization_config": )" + quantization + "}"),
          "folder/config.json"};
}

TEST(QuantizationMethod, OfWeightsThatAreReadIsAccepted) {
  for (const char* accepted :
       {R"({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["proj_out"]})",
        R"({"quant_method": "compressed-tensors", "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 8}}}})",
        "null"}) {
    auto flux = config("FluxTransformer2DModel", accepted);
    EXPECT_NO_THROW(FluxConfig::parse(flux)) << accepted;
    auto clip = config("CLIPTextModel", accepted);
    EXPECT_NO_THROW(ClipTextConfig::parse(clip)) << accepted;
    auto t5 = config("T5EncoderModel", accepted);
    EXPECT_NO_THROW(T5EncoderConfig::parse(t5)) << accepted;
  }
}

TEST(QuantizationMethod, OfOtherWeightsIsRefusedWithAWayOut) {
  const auto refused = [](const std::string& quantization,
                          const ::testing::Matcher<std::string>& text) {
    const auto whole = AllOf(HasSubstr("[folder/config.json]"), text,
                             HasSubstr("take the original checkpoint"), Not(HasSubstr("remove")));
    for (const char* class_name : {"CLIPTextModel", "T5EncoderModel", "FluxTransformer2DModel"}) {
      auto json = config(class_name, quantization);
      test::expect_error<UnsupportedError>(
          [&] {
            if (class_name[0] == 'C') ClipTextConfig::parse(json);
            if (class_name[0] == 'T') T5EncoderConfig::parse(json);
            if (class_name[0] == 'F') FluxConfig::parse(json);
          },
          whole);
    }
  };
  refused(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})",
          HasSubstr("quant_method 'bitsandbytes'"));
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
          HasSubstr("quant_method 'compressed-tensors' and format 'pack-quantized'"));
  refused(R"({"load_in_8bit": true})", HasSubstr("quant_method ''"));
}

}  // namespace
}  // namespace cachedit::models
