// Which layers a configuration means, in files and in components.
#include "pipelines/quantize_choice.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "io/safetensors.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

using pipelines::QuantizeChoice;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class QuantizePlan : public ::testing::Test {
 protected:
  QuantizePlan() {
    std::map<std::string, at::Tensor> tensors;
    for (const char* layer :
         {"x_embedder", "transformer_blocks.0.norm1.linear", "transformer_blocks.0.attn.to_q",
          "transformer_blocks.0.attn.to_out.0", "single_transformer_blocks.0.proj_out",
          "transformer_blocks.0.embed_thing", "norm_out.linear", "text_model.encoder.fc1"}) {
      tensors[std::string(layer) + ".weight"] = at::zeros({2, 2});
    }
    tensors["transformer_blocks.0.attn.norm_q.weight"] = at::zeros({2});
    io::write_safetensors(folder_ / "model.safetensors", tensors);
  }

  /// "type" or "(reason)" of a layer.
  std::string of(const QuantizeConfig& config, const std::string& layer,
                 const std::string& component = "transformer") const {
    const auto store = io::WeightStore::open(folder_.path());
    const nn::QuantizationRule rule =
        QuantizeChoice(config, at::kCPU).plan(component, store).rule_for(layer);
    return rule.type ? nn::name_of(*rule.type) : "(" + rule.reason + ")";
  }

  static constexpr const char* kQuery = "transformer_blocks.0.attn.to_q";
  static constexpr const char* kOut = "transformer_blocks.0.attn.to_out.0";
  test::TempDir folder_;
};

TEST_F(QuantizePlan, DefaultsAreCacheDits) {
  const QuantizeConfig defaults;
  EXPECT_EQ(of(defaults, kQuery), "float8_per_row");
  EXPECT_EQ(of(defaults, "single_transformer_blocks.0.proj_out"), "float8_per_row");
  EXPECT_EQ(of(defaults, "transformer_blocks.0.norm1.linear"), "float8_per_row");
  EXPECT_EQ(of(defaults, "transformer_blocks.0.embed_thing"), "(excluded by 'embed')");
  EXPECT_EQ(of(defaults, "x_embedder"), "(outside of the blocks)");
  EXPECT_EQ(of(defaults, "norm_out.linear"), "(outside of the blocks)");
}

TEST_F(QuantizePlan, WithoutRegionsOnlyExcludedLayersAreLeft) {
  const QuantizeConfig whole{.quant_type = "int8_per_row", .regional_quantize = false};
  EXPECT_EQ(of(whole, "norm_out.linear"), "int8_per_row");
  EXPECT_EQ(of(whole, "x_embedder"), "(excluded by 'embedder')");
}

TEST_F(QuantizePlan, TextEncodersHaveNoRegionsAndTheirPrefixIsNoName) {
  const QuantizeConfig config{.quant_type = "int8_per_row",
                              .components_to_quantize = {{"text_encoder", {}}}};
  EXPECT_EQ(of(config, "text_model.encoder.fc1", "text_encoder"), "int8_per_row");
  EXPECT_EQ(of(config, kQuery), "()") << "the transformer was not named";
}

TEST_F(QuantizePlan, TheLongestPatternOfAPrecisionPlanDecides) {
  const QuantizeConfig config{.quant_type = "int8_per_row",
                              .precision_plan = {{"attn", "float8_per_row"},
                                                 {"attn.to_out", "none"},
                                                 {"single*proj", "int4_weight_only"},
                                                 {"embed_thing", "int8_per_tensor"}}};
  EXPECT_EQ(of(config, kQuery), "float8_per_row");
  EXPECT_EQ(of(config, kOut), "(none by the precision_plan)");
  EXPECT_EQ(of(config, "single_transformer_blocks.0.proj_out"), "int4_weight_only");
  EXPECT_EQ(of(config, "transformer_blocks.0.norm1.linear"), "int8_per_row");
  EXPECT_EQ(of(config, "transformer_blocks.0.embed_thing"), "(excluded by 'embed')");
  const QuantizeConfig alone{.quant_type = "none", .precision_plan = {{"to_q", "int8_per_row"}}};
  EXPECT_EQ(of(alone, kQuery), "int8_per_row");
  EXPECT_EQ(of(alone, kOut), "(not in the precision_plan)");
}

TEST_F(QuantizePlan, ComponentsMayHaveTheirOwnSettings) {
  const QuantizeConfig config{
      .quant_type = "int8_per_row",
      .components_to_quantize = {{"transformer", {.exclude_layers = {{"to_q"}}}},
                                 {"text_encoder", {.quant_type = "float8_weight_only"}}}};
  EXPECT_EQ(of(config, kQuery), "(excluded by 'to_q')");
  EXPECT_EQ(of(config, kOut), "int8_per_row");
  EXPECT_EQ(of(config, "text_model.encoder.fc1", "text_encoder"), "float8_weight_only");
  EXPECT_EQ(of(config, "text_model.encoder.fc1", "text_encoder_2"), "()");
}

TEST_F(QuantizePlan, PatternsThatNameNoLayerAreWarnedOf) {
  ::testing::internal::CaptureStderr();
  const auto store = io::WeightStore::open(folder_.path());
  const auto warn = [&](const QuantizeConfig& config) {
    QuantizeChoice(config, at::kCPU).warn_of_unmet({{"transformer", &store}});
  };
  warn({.exclude_layers = {"embed", "to_z"}, .precision_plan = {{"to_y", "int8_per_row"}}});
  warn(QuantizeConfig());
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text,
              AllOf(HasSubstr("exclude_layers: 'to_z' is in no layer's name of transformer"),
                    HasSubstr("precision_plan: 'to_y' is in no layer's name of transformer")));
  EXPECT_THAT(text, Not(HasSubstr("modulation")));
}

TEST_F(QuantizePlan, PatternsForAllComponentsAreWarnedOfWhereNoneHasThem) {
  test::TempDir encoder;
  io::write_safetensors(encoder / "model.safetensors",
                        {{"text_model.encoder.fc1.weight", at::zeros({2, 2})},
                         {"text_model.encoder.fc2.weight", at::zeros({2, 2})}});
  const auto store = io::WeightStore::open(folder_.path());
  const auto encoder_store = io::WeightStore::open(encoder.path());
  ::testing::internal::CaptureStderr();
  QuantizeChoice(
      QuantizeConfig{.exclude_layers = {"to_q", "fc2", "to_z"},
                     .components_to_quantize = {{"transformer", {}},
                                                {"text_encoder", {}},
                                                {"text_encoder_2", {.exclude_layers = {{"to_q"}}}}},
                     .precision_plan = {{"fc1", "none"}}},
      at::kCPU)
      .warn_of_unmet({{"transformer", &store},
                      {"text_encoder", &encoder_store},
                      {"text_encoder_2", &encoder_store}});
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "cachedit warning: [quantize] exclude_layers: 'to_z' is in no layer's name of text_encoder, "
      "transformer\n"
      "cachedit warning: [quantize] exclude_layers: 'to_q' is in no layer's name of "
      "text_encoder_2\n");
}

TEST_F(QuantizePlan, TypesMayHaveLettersOfAnyCase) {
  const QuantizeConfig config{
      .quant_type = "INT8_PER_ROW",
      .components_to_quantize = {{"transformer", {}},
                                 {"text_encoder", {.quant_type = "Float8_Weight_Only"}}},
      .precision_plan = {{"to_q", "None"}, {"to_out", "INT4_weight_only"}}};
  EXPECT_EQ(of(config, "transformer_blocks.0.norm1.linear"), "int8_per_row");
  EXPECT_EQ(of(config, kQuery), "(none by the precision_plan)");
  EXPECT_EQ(of(config, kOut), "int4_weight_only");
  EXPECT_EQ(of(config, "text_model.encoder.fc1", "text_encoder"), "float8_weight_only");
  EXPECT_EQ(QuantizeChoice(QuantizeConfig{.quant_type = "INT8_PER_ROW"}, at::kCPU),
            QuantizeChoice(QuantizeConfig{.quant_type = "int8_per_row"}, at::kCPU))
      << "nothing to load again";
}

TEST_F(QuantizePlan, AGroupSizeThatNoLayerHasIsWarnedOfOnce) {
  const auto warnings = [](const QuantizeConfig& config) {
    ::testing::internal::CaptureStderr();
    const QuantizeChoice choice(config, at::kCPU);
    const std::string text = ::testing::internal::GetCapturedStderr();
    const std::string warning = "group_size 32 has no effect";
    const size_t first = text.find(warning);
    if (first == std::string::npos) return 0;
    return text.find(warning, first + 1) == std::string::npos ? 1 : 2;
  };
  const std::map<std::string, std::string> plan = {{"to_q", "int4_weight_only"}};
  EXPECT_EQ(warnings({.quant_type = "int8_per_row", .group_size = 32}), 1);
  EXPECT_EQ(warnings({.quant_type = "int8_per_row",
                      .components_to_quantize = {{"transformer", {}}, {"text_encoder", {}}},
                      .group_size = 32}),
            1);
  EXPECT_EQ(warnings({.quant_type = "int4_weight_only",
                      .components_to_quantize = {{"transformer", {.quant_type = "none"}}},
                      .group_size = 32}),
            1)
      << "no component has that type";
  EXPECT_EQ(warnings({.quant_type = "int8_per_row"}), 0) << "the default";
  EXPECT_EQ(warnings({.quant_type = "int4_weight_only", .group_size = 32}), 0);
  EXPECT_EQ(warnings({.quant_type = "none", .precision_plan = plan, .group_size = 32}), 0);
  EXPECT_EQ(warnings({.quant_type = "none",
                      .components_to_quantize = {{"text_encoder", {.precision_plan = plan}}},
                      .group_size = 32}),
            0);
}

TEST_F(QuantizePlan, LayersThatTheFileHasQuantizedSaySo) {
  io::write_safetensors(folder_ / "model.safetensors",
                        {{"x_embedder.weight", at::zeros({2, 2}, at::kChar)},
                         {"norm_out.linear.weight", at::zeros({2, 2})},
                         {std::string(kQuery) + ".weight", at::zeros({2, 2}, at::kFloat8_e4m3fn)}});
  const QuantizeConfig config{.quant_type = "int8_per_row", .exclude_layers = {"to_q"}};
  EXPECT_EQ(of(config, "x_embedder"), "(quantized in the file; outside of the blocks)");
  EXPECT_EQ(of(config, kQuery), "(quantized in the file; excluded by 'to_q')");
  EXPECT_EQ(of(config, "norm_out.linear"), "(outside of the blocks)");
}

TEST_F(QuantizePlan, WhatTheCheckpointSaysOfItselfHolds) {
  io::write_safetensors(folder_ / "model.safetensors",
                        {{std::string(kQuery) + ".weight", at::zeros({2, 2}, at::kChar)},
                         {std::string(kOut) + ".weight", at::zeros({2, 2})}});
  folder_.write("quantization_config.json", R"({"quant_method": "cachedit", "group_size": 32,
    "layers": {"transformer_blocks.0.attn.to_q": "int8_per_row"}})");
  const auto store = io::WeightStore::open(folder_.path());
  const nn::QuantizationPlan plan = QuantizeChoice().plan("transformer", store);
  EXPECT_EQ(plan.group_size, 32);
  EXPECT_EQ(plan.rule_for(kQuery).type, nn::QuantType::kInt8PerRow);
  EXPECT_EQ(plan.rule_for(kOut).type, std::nullopt);
  EXPECT_EQ(of({.quant_type = "int8_weight_only"}, kQuery), "int8_weight_only");
  EXPECT_EQ(of({.quant_type = "float8_per_row"}, kQuery), "int8_per_row");
  EXPECT_EQ(QuantizeChoice(QuantizeConfig{.quant_type = "float8_per_row"}, at::kCPU)
                .plan("transformer", store)
                .rule_for(kQuery)
                .reason,
            "stored as int8_per_row, kept so");
  EXPECT_EQ(of({.quant_type = "float8_per_row"}, kOut), "float8_per_row");
  folder_.write("quantization_config.json", R"({"quant_method": "cachedit", "layers": 3})");
  test::expect_error<ConfigError>([&] { of({}, kQuery); }, HasSubstr("must map layers to types"));
  folder_.write("quantization_config.json", R"({"quant_method": "gptq", "bits": 4})");
  EXPECT_EQ(of({.quant_type = "float8_per_row"}, kQuery), "float8_per_row");
}

TEST_F(QuantizePlan, ACheckpointThatDescribesOtherWeightsIsRefused) {
  io::write_safetensors(folder_ / "model.safetensors",
                        {{"a.weight", at::zeros({2, 2}, at::kBFloat16)},
                         {"b.weight", at::zeros({2, 2}, at::kChar)},
                         {"c.weight", at::zeros({2, 2}, at::kFloat8_e4m3fn)},
                         {"d.weight", at::zeros({2, 1}, at::kByte)}});
  const auto store = io::WeightStore::open(folder_.path());
  const auto read = [&](const std::string& fields) {
    folder_.write("quantization_config.json", R"({"quant_method": "cachedit", )" + fields + "}");
    QuantizeChoice().plan("transformer", store);
  };
  const auto refused = [&](const std::string& fields, const ::testing::Matcher<std::string>& text) {
    test::expect_error<ConfigError>([&] { read(fields); },
                                    AllOf(HasSubstr("quantization_config.json] "), text));
  };
  read(R"("layers": {"b": "int8_per_tensor", "c": "float8_per_row", "d": "int4_weight_only"})");
  const std::string advice = "the file belongs to other weights: remove it, or take the folder";
  refused(R"("layers": {"a": "int8_per_row"})",
          AllOf(HasSubstr("layer 'a' is said to be int8_per_row: got a weight of bf16"),
                HasSubstr(advice)));
  refused(R"("layers": {"b": "float8_per_row"})", HasSubstr("got a weight of int8"));
  refused(R"("layers": {"c": "int4_weight_only"})", HasSubstr("got a weight of fp8_e4m3"));
  refused(R"("layers": {"z": "int8_per_row"})",
          AllOf(HasSubstr("no weight of the layer 'z' is in the folder"), HasSubstr(advice)));
  for (const char* size : {"0", "-1", "48", "1000000000000000000"}) {
    refused(std::string(R"("layers": {}, "group_size": )") + size,
            HasSubstr(std::string("group_size must be 32, 64 or 128: got ") + size));
  }
  refused(R"("layers": {"b": "int8_per_rov"})", HasSubstr("did you mean 'int8_per_row'?"));
}

TEST(QuantizeConfigCheck, FaultsAreNamed) {
  const auto refused = [](const QuantizeConfig& config) {
    try {
      check_quantize_config(config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  // FR-24
  EXPECT_THAT(refused({.quant_type = "fp9"}), AllOf(HasSubstr("'fp9'"), HasSubstr("int8_per_row")));
  EXPECT_THAT(refused({.quant_type = "float8perrow"}), HasSubstr("did you mean 'float8_per_row'?"));
  EXPECT_THAT(refused({.quant_type = "q8_0"}), Not(HasSubstr("did you mean")));
  EXPECT_THAT(refused({.quant_type = "INT4"}), HasSubstr("did you mean 'int4_weight_only'?"));
  EXPECT_THAT(refused({.quant_type = "nvfp4"}), HasSubstr("SVDQuant and NVFP4"));
  EXPECT_THAT(refused({.group_size = 48}), HasSubstr("32, 64 or 128: got 48"));
  EXPECT_THAT(refused({.exclude_layers = {""}}), HasSubstr("exclude_layers"));
  EXPECT_THAT(refused({.precision_plan = {{"a", "fp9"}}}), HasSubstr("'fp9'"));
  EXPECT_THAT(refused({.precision_plan = {{"", "none"}}}), HasSubstr("precision_plan"));
  EXPECT_THAT(refused({.components_to_quantize = {{"vae", {}}}}), HasSubstr("got 'vae'"));
  EXPECT_THAT(refused({.components_to_quantize = {{"transformer", {.quant_type = "fp9"}}}}),
              HasSubstr("'fp9'"));
  EXPECT_EQ(refused({}), "nothing was thrown");
  test::expect_error<UnsupportedError>(
      [] { QuantizeChoice(QuantizeConfig(), at::Device("cuda:0")); },
      HasSubstr("on CPUs only: got cuda:0"));
}

}  // namespace
}  // namespace cachedit
