// Which scheduler_config.json files are read, and which are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "pipelines/schedulers/flow_match_euler.h"
#include "support/temp_dir.h"

namespace cachedit::pipelines {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

FlowMatchEulerConfig parse(Json config) {
  if (!config.contains("_class_name")) config["_class_name"] = "FlowMatchEulerDiscreteScheduler";
  io::JsonConfig json(std::move(config), "test");
  return FlowMatchEulerConfig::parse(json);
}

std::string refusal(const Json& config) {
  try {
    parse(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FlowMatchConfig, ReadsTheShippedModel) {
  io::JsonConfig json =
      io::JsonConfig::read(test::demo_model() / "scheduler" / "scheduler_config.json");
  const FlowMatchEulerConfig config = FlowMatchEulerConfig::parse(json);
  EXPECT_EQ(config.num_train_timesteps, 1000);
  EXPECT_EQ(config.shift, 1.0);
  EXPECT_FALSE(config.use_dynamic_shifting);
  EXPECT_FALSE(config.shift_terminal.has_value());
}

TEST(FlowMatchConfig, ReadsEveryKey) {
  const FlowMatchEulerConfig config = parse({{"_diffusers_version", "0.34.0.dev0"},
                                             {"num_train_timesteps", 500},
                                             {"shift", 2},
                                             {"use_dynamic_shifting", true},
                                             {"base_shift", 0.25},
                                             {"max_shift", 0.9},
                                             {"base_image_seq_len", 128},
                                             {"max_image_seq_len", 8192},
                                             {"invert_sigmas", true},
                                             {"shift_terminal", 0.02},
                                             {"use_beta_sigmas", true},
                                             {"time_shift_type", "linear"},
                                             {"stochastic_sampling", true}});
  EXPECT_EQ(config.num_train_timesteps, 500);
  EXPECT_EQ(config.shift, 2.0);
  EXPECT_TRUE(config.use_dynamic_shifting);
  EXPECT_EQ(config.base_shift, 0.25);
  EXPECT_EQ(config.max_shift, 0.9);
  EXPECT_EQ(config.base_image_seq_len, 128);
  EXPECT_EQ(config.max_image_seq_len, 8192);
  EXPECT_TRUE(config.invert_sigmas);
  EXPECT_EQ(config.shift_terminal, 0.02);
  EXPECT_TRUE(config.use_beta_sigmas);
  EXPECT_EQ(config.time_shift_type, "linear");
  EXPECT_TRUE(config.stochastic_sampling);
  EXPECT_TRUE(parse({{"use_karras_sigmas", true}}).use_karras_sigmas);
  EXPECT_TRUE(parse({{"use_exponential_sigmas", true}}).use_exponential_sigmas);
}

TEST(FlowMatchConfig, AbsentAndNullKeysHaveDefaults) {
  const FlowMatchEulerConfig config = parse({{"base_shift", nullptr}, {"shift_terminal", nullptr}});
  EXPECT_EQ(config.base_shift, 0.5);
  EXPECT_EQ(config.max_shift, 1.15);
  EXPECT_EQ(config.base_image_seq_len, 256);
  EXPECT_EQ(config.max_image_seq_len, 4096);
  EXPECT_EQ(config.time_shift_type, "exponential");
}

TEST(FlowMatchConfig, RefusesOtherClassesAndUnknownKeys) {
  EXPECT_THAT(refusal({{"_class_name", "UniPCMultistepScheduler"}}), HasSubstr("UniPC"));
  EXPECT_THAT(refusal({{"sigma_speed", 2}}), HasSubstr("sigma_speed"));
  // diffusers hides this one in the config, where Karras and the like would find it.
  EXPECT_THAT(refusal({{"sigma_min", 0.1}, {"use_karras_sigmas", true}}), HasSubstr("sigma_min"));
}

TEST(FlowMatchConfig, KeysLeftByOtherClassesPassOnlyWhileHarmless) {
  const Json harmless = {{"beta_start", 0.0001},      {"beta_schedule", "linear"},
                         {"solver_order", 2},         {"predict_x0", true},
                         {"lower_order_final", true}, {"thresholding", false},
                         {"use_flow_sigmas", true},   {"prediction_type", "flow_prediction"},
                         {"sigma_min", nullptr},      {"final_sigmas_type", "zero"}};
  EXPECT_EQ(refusal(harmless), "accepted");
  EXPECT_THAT(refusal({{"thresholding", true}}), HasSubstr("thresholding"));
  EXPECT_THAT(refusal({{"prediction_type", "epsilon"}}), HasSubstr("prediction_type"));
  EXPECT_THAT(refusal({{"final_sigmas_type", "sigma_min"}}), HasSubstr("final_sigmas_type"));
  EXPECT_THAT(refusal({{"timestep_spacing", "trailing"}}), HasSubstr("timestep_spacing"));
  EXPECT_THAT(refusal({{"flow_shift", 5.0}}), HasSubstr("put the value in 'shift'"));
  EXPECT_EQ(refusal({{"flow_shift", 5.0}, {"shift", 5.0}}), "accepted");
}

TEST(FlowMatchConfig, RefusesContradictingSwitches) {
  for (const char* first : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"}) {
    for (const char* second : {"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"}) {
      const std::string text = refusal({{first, true}, {second, true}});
      if (std::string_view(first) == second) {
        EXPECT_EQ(text, "accepted");
      } else {
        EXPECT_THAT(text, HasSubstr("only one of"));
      }
    }
  }
}

TEST(FlowMatchConfig, RefusesValuesOutOfRange) {
  EXPECT_THAT(refusal({{"time_shift_type", "cubic"}}), HasSubstr("cubic"));
  EXPECT_THAT(refusal({{"num_train_timesteps", 0}}), HasSubstr("num_train_timesteps"));
  EXPECT_THAT(refusal({{"num_train_timesteps", int64_t{1} << 40}}),
              HasSubstr("num_train_timesteps"));
  EXPECT_THAT(refusal({{"shift", 0}}), HasSubstr("shift"));
  EXPECT_THAT(refusal({{"shift", -3.0}}), HasSubstr("-3"));
  EXPECT_THAT(refusal({{"shift_terminal", 1.0}}), HasSubstr("shift_terminal"));
  EXPECT_THAT(refusal({{"shift_terminal", -0.1}}), HasSubstr("shift_terminal"));
  EXPECT_THAT(refusal({{"base_image_seq_len", 4096}}), HasSubstr("4096 and 4096"));
  EXPECT_THAT(refusal({{"max_image_seq_len", 0}}), HasSubstr("max_image_seq_len"));
  EXPECT_THAT(refusal({{"use_dynamic_shifting", "yes"}}), HasSubstr("use_dynamic_shifting"));
  EXPECT_THROW(FlowMatchEulerScheduler(FlowMatchEulerConfig{.shift = -1.0}), ConfigError);
}

}  // namespace
}  // namespace cachedit::pipelines
