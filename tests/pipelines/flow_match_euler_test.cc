// Schedules and steps against stored results of diffusers 0.42.1 (goldens/make_schedules.py).
#include "pipelines/schedulers/flow_match_euler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cachedit/error.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"

namespace cachedit::pipelines {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

FlowMatchEulerScheduler make_scheduler(Json config) {
  config["_class_name"] = "FlowMatchEulerDiscreteScheduler";
  io::JsonConfig json(std::move(config), "test");
  return FlowMatchEulerScheduler(FlowMatchEulerConfig::parse(json));
}

ScheduleRequest make_request(const Json& json) {
  ScheduleRequest request;
  request.sigmas = json.value("sigmas", std::vector<double>{});
  request.timesteps = json.value("timesteps", std::vector<double>{});
  if (json.contains("num_inference_steps"))
    request.num_inference_steps = json["num_inference_steps"];
  if (json.contains("mu")) request.mu = json["mu"];
  return request;
}

Json read_golden(const char* name) { return io::read_json_file(test::golden("schedules") / name); }

/// The distance in units of float32 spacing at `want`.
double ulps(float got, float want) {
  const float spacing =
      std::nextafter(std::abs(want), std::numeric_limits<float>::infinity()) - std::abs(want);
  return std::abs(double{got} - double{want}) / spacing;
}

void expect_near_ulps(const std::vector<float>& got, const std::vector<float>& want,
                      double allowed) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(ulps(got[i], want[i]), allowed) << "index " << i << ": " << got[i] << ", " << want[i];
  }
}

template <class Error>
std::string error_text(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing of this type was thrown";
}

TEST(FlowMatchEuler, SchedulesEqualDiffusers) {
  ::testing::internal::CaptureStderr();  // the warnings have a test of their own
  const Json golden = read_golden("schedules.json");
  for (const Json& example : golden["cases"]) {
    const std::string config = example["config"];
    SCOPED_TRACE(c10::str(config, " ", std::string(example["kind"])));
    const Schedule got =
        make_scheduler(golden["configs"][config]).make_schedule(make_request(example["request"]));
    // The other spacings go through pow and exp, where NumPy's vector code may round the last bit
    // of a float64 differently; that can show as the next float32.
    const bool spaced = config.starts_with("karras") || config.starts_with("exponential") ||
                        config.starts_with("beta");
    expect_near_ulps(got.sigmas, example["sigmas"], spaced ? 1 : 0);
    // One more for the product with num_train_timesteps: a neighbouring float may cross a binade.
    expect_near_ulps(got.timesteps, example["timesteps"], spaced ? 2 : 0);
  }
  EXPECT_GT(golden["cases"].size(), 150U);
  ::testing::internal::GetCapturedStderr();
}

TEST(FlowMatchEuler, OneStepWithTerminalShiftStartsAtPureNoise) {  // FR-25
  const Json config = {{"use_dynamic_shifting", true}, {"shift_terminal", 0.02}};
  const FlowMatchEulerScheduler scheduler = make_scheduler(config);
  for (const ScheduleRequest& request :
       {ScheduleRequest{.num_inference_steps = 1, .mu = 0.6}, {.sigmas = {1.0}, .mu = 0.6}}) {
    const Schedule got = scheduler.make_schedule(request);
    EXPECT_THAT(got.sigmas, ElementsAre(1.0F, 0.0F));
    EXPECT_THAT(got.timesteps, ElementsAre(1000.0F));
  }
  // A static shift leaves 1 only up to rounding, which a stretch would blow up to 1 - terminal.
  for (const double shift : {1.7, 2.2, 2.9, 3.3}) {
    const Schedule got = make_scheduler({{"shift", shift}, {"shift_terminal", 0.02}})
                             .make_schedule({.num_inference_steps = 1});
    EXPECT_NEAR(got.sigmas.front(), 1.0F, 1e-6) << shift;
  }
}

TEST(FlowMatchEuler, TwoStepsEndAtTheTerminalShift) {
  const FlowMatchEulerScheduler scheduler =
      make_scheduler({{"use_dynamic_shifting", true}, {"shift_terminal", 0.02}});
  const Schedule got = scheduler.make_schedule({.sigmas = {1.0, 0.5}, .mu = 0.6});
  // 1 - 0.98 in float32: one rounding of 0.98.
  EXPECT_THAT(got.sigmas, ElementsAre(1.0F, ::testing::FloatNear(0.02F, 6e-8F), 0.0F));
}

TEST(FlowMatchEuler, StaticShiftActsTwiceOnTheDefaultSchedulesEnd) {
  const FlowMatchEulerScheduler scheduler = make_scheduler({{"shift", 3.0}});
  const auto shifted = [](double sigma) { return 3 * sigma / (1 + 2 * sigma); };
  EXPECT_NEAR(scheduler.make_schedule({.num_inference_steps = 4}).sigmas[3],
              shifted(shifted(0.001)), 1e-8);
  EXPECT_NEAR(scheduler.make_schedule({.sigmas = {1.0, 0.001}}).sigmas[1], shifted(0.001), 1e-8);
}

TEST(FlowMatchEuler, CustomTimestepsAreKeptWhileTheirSigmasAreShifted) {  // FR-27
  ::testing::internal::CaptureStderr();
  const Schedule got =
      make_scheduler({{"shift", 3.0}}).make_schedule({.timesteps = {1000, 2.99401209}});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("the two may disagree"));
  EXPECT_THAT(got.timesteps, ElementsAre(1000.0F, 2.99401209F));
  EXPECT_THAT(got.sigmas,
              ElementsAre(FloatEq(1.0F), ::testing::FloatNear(0.0089286F, 5e-8F), 0.0F));
}

TEST(FlowMatchEuler, SigmasBesideTimestepsNeedNoWarning) {
  ::testing::internal::CaptureStderr();
  make_scheduler({{"shift", 3.0}}).make_schedule({.sigmas = {1, 0.5}, .timesteps = {1000, 500}});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(FlowMatchEuler, MuFollowsTheImageLengthLinearly) {
  const FlowMatchEulerScheduler flux = make_scheduler(Json::object());
  EXPECT_DOUBLE_EQ(flux.mu_for(256), 0.5);
  EXPECT_DOUBLE_EQ(flux.mu_for(4096), 1.15);
  EXPECT_DOUBLE_EQ(flux.mu_for(1024), 0.63);  // beyond and between alike, without clamping
  EXPECT_DOUBLE_EQ(flux.mu_for(64), 0.4675);
  const FlowMatchEulerScheduler qwen =
      make_scheduler({{"max_image_seq_len", 8192}, {"max_shift", 0.9}});
  EXPECT_DOUBLE_EQ(qwen.mu_for(8192), 0.9);
}

TEST(FlowMatchEuler, RefusesContradictingRequests) {
  const FlowMatchEulerScheduler plain = make_scheduler(Json::object());
  const auto text = [&](const ScheduleRequest& request) {
    return error_text<InputError>([&] { plain.make_schedule(request); });
  };
  EXPECT_THAT(text({}), HasSubstr("no steps"));
  EXPECT_THAT(text({.num_inference_steps = 0}), HasSubstr("got 0"));
  EXPECT_THAT(text({.num_inference_steps = -3}), HasSubstr("got -3"));
  EXPECT_THAT(text({.num_inference_steps = int64_t{1} << 60}), HasSubstr("num_inference_steps"));
  EXPECT_THAT(text({.num_inference_steps = 3, .sigmas = {1, 0.5}}), HasSubstr("got 2 for 3"));
  EXPECT_THAT(text({.num_inference_steps = 1, .timesteps = {9, 5}}), HasSubstr("got 2 for 1"));
  EXPECT_THAT(text({.sigmas = {1, 0.5}, .timesteps = {1}}), HasSubstr("got 2 and 1"));
}

TEST(FlowMatchEuler, RefusesValuesThatGiveNoFiniteSchedule) {
  const FlowMatchEulerScheduler plain = make_scheduler(Json::object());
  for (const double bad : {kNan, kInf, -kInf, 1e300}) {
    EXPECT_THROW(plain.make_schedule({.sigmas = {1, bad}}), InputError) << bad;
    EXPECT_THROW(plain.make_schedule({.timesteps = {bad, 1}}), InputError) << bad;
  }
  const FlowMatchEulerScheduler dynamic = make_scheduler({{"use_dynamic_shifting", true}});
  EXPECT_THAT(error_text<InputError>([&] { dynamic.make_schedule({.num_inference_steps = 4}); }),
              HasSubstr("mu must be given"));
  for (const double mu : {kNan, kInf, 1000.0, -1000.0}) {
    EXPECT_THROW(dynamic.make_schedule({.num_inference_steps = 4, .mu = mu}), InputError) << mu;
  }
  const Json stretched = {{"shift_terminal", 0.1}};
  EXPECT_THROW(make_scheduler(stretched).make_schedule({.sigmas = {0.5, 1}}), InputError);
  EXPECT_THROW(make_scheduler({{"use_exponential_sigmas", true}}).make_schedule({.sigmas = {1, 0}}),
               InputError);
  EXPECT_THROW(make_scheduler({{"use_karras_sigmas", true}}).make_schedule({.sigmas = {1, -0.5}}),
               InputError);
}

at::Tensor stored(const Json& example, const char* name) {
  const at::Tensor flat = at::tensor(example[name].get<std::vector<double>>(), at::kFloat);
  const auto dtype = example["dtype"] == "bfloat16" ? at::kBFloat16 : at::kFloat;
  return flat.reshape(example["shape"].get<std::vector<int64_t>>()).to(dtype);
}

TEST(FlowMatchEuler, StepsAndNoisedSamplesEqualDiffusers) {
  const Json golden = read_golden("steps.json");
  for (const Json& example : golden["cases"]) {
    SCOPED_TRACE(example["dtype"].dump() + example["config"].dump() + example["index"].dump());
    const FlowMatchEulerScheduler scheduler = make_scheduler(example["config"]);
    const Schedule schedule = scheduler.make_schedule({.num_inference_steps = example["steps"]});
    const auto generator =
        at::make_generator<at::CPUGeneratorImpl>(uint64_t{example["noise_seed"]});
    const at::Tensor stepped =
        scheduler.step(schedule, example["index"], stored(example, "model_output"),
                       stored(example, "sample"), generator);
    EXPECT_EQ(stepped.scalar_type(), stored(example, "stepped").scalar_type());
    EXPECT_EQ(test::max_abs_error(stepped, stored(example, "stepped")), 0);
    const at::Tensor noised = scheduler.scale_noise(
        schedule, example["index"], stored(example, "sample"), stored(example, "noise"));
    EXPECT_EQ(noised.scalar_type(), stored(example, "noised").scalar_type());
    EXPECT_EQ(test::max_abs_error(noised, stored(example, "noised")), 0);
  }
  EXPECT_EQ(golden["cases"].size(), 12U);
}

TEST(FlowMatchEuler, StepKeepsTheSampleInFloat32UntilTheSum) {
  // In units of 2^-9 above 1, where bfloat16 has 0 and 4: 3 - 1.5 = 1.5 rounds to 0. A sample
  // rounded to bfloat16 before the sum would give 4 - 1.5 = 2.5, which rounds to 4.
  const double unit = std::pow(2.0, -9);
  const FlowMatchEulerScheduler scheduler = make_scheduler(Json::object());
  const Schedule schedule{.timesteps = {1000}, .sigmas = {1, 0}};
  const at::Tensor sample = at::full({3}, 1 + 3 * unit, at::kFloat);
  const at::Tensor output = at::full({3}, 1.5 * unit, at::kBFloat16);
  const at::Tensor got = scheduler.step(schedule, 0, output, sample);
  EXPECT_EQ(got.scalar_type(), at::kBFloat16);
  EXPECT_EQ(test::max_abs_error(got, at::full({3}, 1.0, at::kFloat)), 0);
}

TEST(FlowMatchEuler, StepRefusesWrongIndexShapesAndAMissingGenerator) {
  const FlowMatchEulerScheduler scheduler = make_scheduler(Json::object());
  const Schedule schedule = scheduler.make_schedule({.num_inference_steps = 2});
  const at::Tensor x = at::full({1, 4}, 0.5, at::kFloat);
  const at::Tensor wide = at::full({1, 5}, 0.5, at::kFloat);
  EXPECT_THROW(scheduler.step(schedule, 2, x, x), InputError);
  EXPECT_THROW(scheduler.step(schedule, -1, x, x), InputError);
  EXPECT_THROW(scheduler.step(Schedule{}, 0, x, x), InputError);
  EXPECT_THROW(scheduler.step(schedule, 0, x, wide), InputError);
  EXPECT_THROW(scheduler.scale_noise(schedule, 0, x, wide), InputError);
  EXPECT_THROW(scheduler.scale_noise(schedule, 2, x, x), InputError);
  const FlowMatchEulerScheduler stochastic = make_scheduler({{"stochastic_sampling", true}});
  EXPECT_THAT(error_text<InputError>([&] { stochastic.step(schedule, 0, x, x); }),
              HasSubstr("got no generator"));
}

}  // namespace
}  // namespace cachedit::pipelines
