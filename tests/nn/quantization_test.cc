// Names of types, and which rule a layer obeys.
#include "nn/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "quantized_reference.h"
#include "support/expect_error.h"

namespace cachedit::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Quantization, NamesReadBack) {
  for (const QuantType type : test::all_quant_types()) {
    EXPECT_EQ(parse_quant_type(name_of(type), "test"), type);
    EXPECT_THAT(quant_type_names(), HasSubstr(name_of(type)));
  }
}

TEST(Quantization, NamesMayHaveLettersOfAnyCase) {
  EXPECT_EQ(parse_quant_type("INT8_PER_ROW", "test"), QuantType::kInt8PerRow);
  EXPECT_EQ(parse_quant_type("Float8_Weight_Only", "test"), QuantType::kFloat8WeightOnly);
  EXPECT_EQ(lower_case("Float8_PER_ROW-\xC3\x84"), "float8_per_row-\xC3\x84") << "ASCII only";
}

TEST(Quantization, UnknownTypesAreRefusedWithTheList) {  // FR-24
  for (const char* name : {"fp9", "", "INT8_PER_ROWS", "int8_per_row ", "bitsandbytes_4bit"}) {
    test::expect_error<ConfigError>(
        [&] { parse_quant_type(name, "quantize"); },
        AllOf(HasSubstr("[quantize] unknown quantize type: got '" + std::string(name) + "'"),
              HasSubstr("int8_per_row"), HasSubstr("float8_weight_only")));
  }
}

TEST(Quantization, TypesOfLaterVersionsAreRefusedByName) {
  for (const char* name : {"svdq_int4_r32_dq", "nvfp4", "nvfp4_weight_only", "SVDQ_INT4_R32"}) {
    test::expect_error<UnsupportedError>(
        [&] { parse_quant_type(name, "quantize"); },
        AllOf(HasSubstr("SVDQuant and NVFP4"), HasSubstr(name), HasSubstr("int4_weight_only")));
  }
}

TEST(Quantization, StarsStandForAnyCharacters) {
  EXPECT_TRUE(fits_pattern("a.*.c", "a.b.c"));
  EXPECT_TRUE(fits_pattern("a*c", "a.b.b.c"));
  EXPECT_TRUE(fits_pattern("*", ""));
  EXPECT_TRUE(fits_pattern("*a*b*", "xaxbx"));
  EXPECT_TRUE(fits_pattern("ab", "ab"));
  EXPECT_FALSE(fits_pattern("ab", "abc"));
  EXPECT_FALSE(fits_pattern("a*b", "ab.c"));
  EXPECT_FALSE(fits_pattern("*ab*", "ba"));
  EXPECT_FALSE(fits_pattern("a", ""));
}

TEST(Quantization, TheFirstRuleThatFitsIsObeyed) {
  const QuantizationPlan plan{
      .type = QuantType::kInt8PerRow,
      .rules = {{.layers = "*.embed*", .reason = "excluded"},
                {.layers = "blocks.*.up", .type = QuantType::kInt4WeightOnly},
                {.layers = "blocks.1.*", .type = QuantType::kFloat8PerRow}}};
  EXPECT_EQ(plan.rule_for("x.embedder").type, std::nullopt);
  EXPECT_EQ(plan.rule_for("x.embedder").reason, "excluded");
  EXPECT_EQ(plan.rule_for("blocks.1.up").type, QuantType::kInt4WeightOnly);
  EXPECT_EQ(plan.rule_for("blocks.1.down").type, QuantType::kFloat8PerRow);
  EXPECT_EQ(plan.rule_for("blocks.2.down").type, QuantType::kInt8PerRow);
  EXPECT_EQ(QuantizationPlan().rule_for("blocks.2.down").type, std::nullopt);
}

}  // namespace
}  // namespace cachedit::nn
