// cachedit_probe schedule: for each line {"config": .., "request": ..} on standard input, a line
// with the noise schedule, or with the error that refused it.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "pipelines/schedulers/flow_match_euler.h"
#include "probe.h"

namespace cachedit::probe {
namespace {

using nlohmann::json;

pipelines::ScheduleRequest read_request(const json& request) {
  pipelines::ScheduleRequest result;
  const auto given = [&](const char* key) {
    return request.contains(key) && !request.at(key).is_null();
  };
  if (given("num_inference_steps")) result.num_inference_steps = request.at("num_inference_steps");
  if (given("sigmas")) result.sigmas = request.at("sigmas").get<std::vector<double>>();
  if (given("timesteps")) result.timesteps = request.at("timesteps").get<std::vector<double>>();
  if (given("mu")) result.mu = request.at("mu");
  return result;
}

/// Nine significant digits name a float32 exactly.
std::string list(const std::vector<float>& values) {
  std::string text = "[";
  for (const float value : values) {
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.9g", static_cast<double>(value));
    text += (text.size() > 1 ? ", " : "") + std::string(digits);
  }
  return text + "]";
}

std::string answer(const json& line) {
  try {
    io::JsonConfig config(line.at("config"), "scheduler_config.json");
    const pipelines::FlowMatchEulerScheduler scheduler(
        pipelines::FlowMatchEulerConfig::parse(config));
    const pipelines::Schedule schedule = scheduler.make_schedule(read_request(line.at("request")));
    return R"({"timesteps": )" + list(schedule.timesteps) + R"(, "sigmas": )" +
           list(schedule.sigmas) + "}";
  } catch (const Error& error) {
    return json{{"error", error.what()}}.dump();
  }
}

}  // namespace

int run_schedule(const Arguments& arguments) {
  if (!arguments.empty()) {
    fail<InputError>("probe", "schedule reads standard input only: got ", arguments.size(),
                     " arguments");
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!line.empty()) std::cout << answer(json::parse(line)) << '\n';
  }
  return 0;
}

}  // namespace cachedit::probe
