// The quantize_config section of a configuration file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class QuantizeYaml : public ::testing::Test {
 protected:
  QuantizeConfig load(const std::string& text) const {
    return load_configs(folder_.write("q.yaml", text)).quantize_config.value();
  }
  void expect_refused(const std::string& text, const ::testing::Matcher<std::string>& why) const {
    test::expect_error<ConfigError>([&] { load(text); },
                                    AllOf(HasSubstr("q.yaml quantize_config"), why));
  }
  test::TempDir folder_;
};

TEST_F(QuantizeYaml, ReadsEveryField) {
  const QuantizeConfig c = load(R"(quantize_config:
  backend: auto
  quant_type: int8_per_row
  exclude_layers: [norm, "to_q"]
  regional_quantize: false
  per_tensor_fallback: false
  group_size: 128
  verbose: true
  svdq_kwargs: null
  precision_plan:
    attn.to_out: float8_per_tensor
    ff: none
    proj_mlp: ~
  components_to_quantize:
    transformer:
      quant_type: int4_weight_only
    text_encoder_2:
      exclude_layers: [wo]
      precision_plan: {wi: int8_weight_only}
)");
  EXPECT_EQ(c.quant_type, "int8_per_row");
  EXPECT_EQ(c.exclude_layers, (std::vector<std::string>{"norm", "to_q"}));
  EXPECT_FALSE(c.regional_quantize);
  EXPECT_FALSE(c.per_tensor_fallback);
  EXPECT_EQ(c.group_size, 128);
  EXPECT_EQ(c.precision_plan,
            (std::map<std::string, std::string>{
                {"attn.to_out", "float8_per_tensor"}, {"ff", "none"}, {"proj_mlp", "none"}}));
  ASSERT_EQ(c.components_to_quantize.size(), 2u);
  EXPECT_EQ(c.components_to_quantize.at("transformer").quant_type, "int4_weight_only");
  EXPECT_EQ(c.components_to_quantize.at("text_encoder_2").exclude_layers,
            (std::vector<std::string>{"wo"}));
}

TEST_F(QuantizeYaml, DefaultsAndListsOfComponents) {
  EXPECT_EQ(load("quantize_config: {quant_type: float8_per_row}\n"), QuantizeConfig());
  const QuantizeConfig c =
      load("quantize_config:\n  components_to_quantize: [transformer, text_encoder]\n");
  EXPECT_EQ(c.components_to_quantize, (std::map<std::string, ComponentQuantizeConfig>{
                                          {"transformer", {}}, {"text_encoder", {}}}));
  EXPECT_FALSE(load_configs(folder_.write("q.yaml", "cache_config: {}\nquantize_config: ~\n"))
                   .quantize_config);
}

TEST_F(QuantizeYaml, TypesMayHaveLettersOfAnyCase) {
  const QuantizeConfig c = load(
      "quantize_config: {quant_type: INT8_PER_ROW, precision_plan: {ff: NONE, attn: "
      "Float8_per_row}, components_to_quantize: {transformer: {quant_type: INT4_WEIGHT_ONLY}}}\n");
  EXPECT_EQ(c.quant_type, "int8_per_row");
  EXPECT_EQ(c.precision_plan,
            (std::map<std::string, std::string>{{"ff", "none"}, {"attn", "float8_per_row"}}));
  EXPECT_EQ(c.components_to_quantize.at("transformer").quant_type, "int4_weight_only");
}

TEST_F(QuantizeYaml, WhatWasWrittenReadsBack) {
  QuantizeConfig config{
      .quant_type = "int4_weight_only",
      .exclude_layers = {"a \"quoted\" name"},
      .regional_quantize = false,
      .components_to_quantize = {{"transformer", {}},
                                 {"text_encoder",
                                  {.quant_type = "int8_per_row",
                                   .exclude_layers = std::vector<std::string>{"x", "y"},
                                   .regional_quantize = true,
                                   .precision_plan =
                                       std::map<std::string, std::string>{{"fc1", "none"}},
                                   .per_tensor_fallback = false}}},
      .precision_plan = {{"attn.to_q", "float8_per_row"}},
      .per_tensor_fallback = false,
      .group_size = 32};
  for (const QuantizeConfig& one : {config, QuantizeConfig()}) {
    write_configs(folder_ / "w.yaml", {.quantize_config = one});
    const EnableCacheOptions back = load_configs(folder_ / "w.yaml");
    EXPECT_EQ(back.quantize_config, one);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(back.cache_config));
  }
}

TEST_F(QuantizeYaml, FaultsAreRefusedByName) {
  expect_refused("quantize_config: 3\n", HasSubstr("keys and values"));
  expect_refused("quantize_config: {quant_typ: int8_per_row}\n",
                 AllOf(HasSubstr("'quant_typ'"), HasSubstr("'quant_type'")));
  expect_refused("quantize_config: {quant_type: fp9}\n",
                 AllOf(HasSubstr("'fp9'"), HasSubstr("int4_weight_only")));
  expect_refused("quantize_config: {quant_type: 8}\n", HasSubstr("quant_type"));
  expect_refused("quantize_config: {backend: bitsandbytes}\n", HasSubstr("backend"));
  expect_refused("quantize_config: {svdq_kwargs: {streaming: true}}\n", HasSubstr("svdq_kwargs"));
  expect_refused("quantize_config: {serialize_to: out}\n", HasSubstr("serialize_to"));
  expect_refused("quantize_config: {group_size: 16}\n", HasSubstr("got 16"));
  expect_refused("quantize_config: {precision_plan: [a]}\n", HasSubstr("map layers to types"));
  expect_refused("quantize_config: {precision_plan: {a: 3}}\n", HasSubstr("'a' must have a type"));
  expect_refused("quantize_config: {components_to_quantize: transformer}\n", HasSubstr("a list"));
  expect_refused("quantize_config: {components_to_quantize: [vae]}\n", HasSubstr("'vae'"));
  expect_refused("quantize_config: {components_to_quantize: {transformer: {type: x}}}\n",
                 HasSubstr("'type'"));
  test::expect_error<ConfigError>([&] { load("quantize_config: {quant_type: fp9}\n"); },
                                  HasSubstr("unknown quantize type"));
}

}  // namespace
}  // namespace cachedit
