// Which configs of AutoencoderKL are read, and which are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cachedit/error.h"
#include "models/vae/autoencoder_kl.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::models {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// The demo model's config with `changes` merged in; null removes a key.
AutoencoderKlConfig parse(const json& changes) {
  json config = json::parse(test::read_bytes(test::demo_model() / "vae" / "config.json"));
  config.merge_patch(changes);
  io::JsonConfig reader(config, "vae/config.json");
  return AutoencoderKlConfig::parse(reader);
}

void expect_refused(const json& changes, const testing::Matcher<std::string>& text) {
  test::expect_error<ConfigError>([&] { parse(changes); },
                                  AllOf(HasSubstr("vae/config.json"), text));
}

TEST(AutoencoderKlConfig, ReadsTheDemoModel) {
  const AutoencoderKlConfig config = parse(json::object());
  EXPECT_THAT(config.block_out_channels, ElementsAre(16, 32, 64, 64));
  EXPECT_EQ(config.in_channels, 3);
  EXPECT_EQ(config.out_channels, 3);
  EXPECT_EQ(config.latent_channels, 16);
  EXPECT_EQ(config.layers_per_block, 1);
  EXPECT_EQ(config.norm_num_groups, 8);
  EXPECT_EQ(config.sample_size, 128);
  EXPECT_EQ(config.act_fn, nn::Activation::kSilu);
  EXPECT_DOUBLE_EQ(config.scaling_factor, 1.4132);
  EXPECT_DOUBLE_EQ(config.shift_factor, 0.0332);
  EXPECT_FALSE(config.use_quant_conv);
  EXPECT_FALSE(config.use_post_quant_conv);
  EXPECT_TRUE(config.mid_block_add_attention);
  EXPECT_EQ(config.scale_factor(), 8);
}

TEST(AutoencoderKlConfig, AbsentKeysHaveDiffusersDefaults) {
  io::JsonConfig reader(json{{"_class_name", "AutoencoderKL"}}, "config.json");
  const AutoencoderKlConfig config = AutoencoderKlConfig::parse(reader);
  EXPECT_THAT(config.block_out_channels, ElementsAre(64));
  EXPECT_EQ(config.latent_channels, 4);
  EXPECT_EQ(config.layers_per_block, 1);
  EXPECT_EQ(config.norm_num_groups, 32);
  EXPECT_EQ(config.sample_size, 32);
  EXPECT_DOUBLE_EQ(config.scaling_factor, 0.18215);
  EXPECT_DOUBLE_EQ(config.shift_factor, 0);
  EXPECT_TRUE(config.use_quant_conv);
  EXPECT_TRUE(config.use_post_quant_conv);
  EXPECT_TRUE(config.mid_block_add_attention);
  EXPECT_EQ(config.scale_factor(), 1);
}

TEST(AutoencoderKlConfig, EachSwitchIsReadByItself) {
  const AutoencoderKlConfig config = parse({{"use_quant_conv", true},
                                            {"use_post_quant_conv", false},
                                            {"mid_block_add_attention", false},
                                            {"shift_factor", nullptr}});
  EXPECT_TRUE(config.use_quant_conv);
  EXPECT_FALSE(config.use_post_quant_conv);
  EXPECT_FALSE(config.mid_block_add_attention);
  EXPECT_EQ(config.shift_factor, 0);
  EXPECT_TRUE(parse({{"use_post_quant_conv", true}}).use_post_quant_conv);
}

TEST(AutoencoderKlConfig, ActivationsAreReadInAnyCase) {
  EXPECT_EQ(parse({{"act_fn", "swish"}}).act_fn, nn::Activation::kSilu);
  EXPECT_EQ(parse({{"act_fn", "SiLU"}}).act_fn, nn::Activation::kSilu);
  EXPECT_EQ(parse({{"act_fn", "gelu"}}).act_fn, nn::Activation::kGelu);
  EXPECT_EQ(parse({{"act_fn", "relu"}}).act_fn, nn::Activation::kRelu);
  expect_refused({{"act_fn", "mish"}}, HasSubstr("'mish'"));
  expect_refused({{"act_fn", "quick_gelu"}}, HasSubstr("'quick_gelu'"));
}

TEST(AutoencoderKlConfig, SampleSizeMayBeAPair) {
  EXPECT_EQ(parse({{"sample_size", {96, 64}}}).sample_size, 96);
  expect_refused({{"sample_size", {96, 64, 32}}}, HasSubstr("sample_size"));
  expect_refused({{"sample_size", "large"}}, HasSubstr("sample_size"));
  expect_refused({{"sample_size", 0}}, HasSubstr("sample_size"));
}

TEST(AutoencoderKlConfig, OtherClassesAreRefused) {
  expect_refused({{"_class_name", "AutoencoderTiny"}}, HasSubstr("AutoencoderTiny"));
  expect_refused({{"_class_name", nullptr}}, HasSubstr("AutoencoderKL"));
}

TEST(AutoencoderKlConfig, KeysThatNobodyKnowsAreRefused) {
  expect_refused({{"norm_type", "spatial"}}, HasSubstr("'norm_type'"));
  EXPECT_NO_THROW(parse({{"force_upcast", false}, {"_name_or_path", "somewhere"}}));
}

TEST(AutoencoderKlConfig, BlocksOfOtherTypesAreRefused) {
  const char* down = "DownEncoderBlock2D";
  expect_refused({{"down_block_types", {down, "AttnDownEncoderBlock2D", down, down}}},
                 HasSubstr("'AttnDownEncoderBlock2D'"));
  expect_refused({{"up_block_types", {"UpBlock2D"}}}, HasSubstr("'UpBlock2D'"));
  expect_refused({{"down_block_types", {down, down}}},
                 AllOf(HasSubstr("down_block_types"), HasSubstr("2 and 4")));
  expect_refused({{"up_block_types", nullptr}}, HasSubstr("1 and 4"));
}

TEST(AutoencoderKlConfig, ValuesOutOfRangeAreRefused) {
  expect_refused({{"norm_num_groups", 12}}, AllOf(HasSubstr("16"), HasSubstr("12")));
  expect_refused({{"norm_num_groups", 0}}, HasSubstr("norm_num_groups"));
  expect_refused({{"block_out_channels", json::array()}}, HasSubstr("block_out_channels"));
  expect_refused({{"block_out_channels", json(std::vector<int>(70, 8))}},
                 HasSubstr("block_out_channels"));
  expect_refused({{"block_out_channels", {16, -32, 64, 64}}}, HasSubstr("-32"));
  expect_refused({{"layers_per_block", 0}}, HasSubstr("layers_per_block"));
  expect_refused({{"latent_channels", -1}}, HasSubstr("latent_channels"));
  expect_refused({{"in_channels", 0}}, HasSubstr("in_channels"));
  expect_refused({{"out_channels", 0}}, HasSubstr("out_channels"));
  expect_refused({{"scaling_factor", 0}}, HasSubstr("scaling_factor"));
  expect_refused({{"scaling_factor", "1"}}, HasSubstr("scaling_factor"));
  expect_refused({{"latents_mean", {0.1, 0.2}}}, HasSubstr("latents_mean"));
  expect_refused({{"latents_std", {1.0}}}, HasSubstr("latents_std"));
}

}  // namespace
}  // namespace cachedit::models
