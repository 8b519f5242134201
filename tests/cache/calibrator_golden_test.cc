// Calibrators against cache-dit's, value by value: tests/goldens/make_calibrators.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cache/calibrators/calibrator.h"
#include "golden_options.h"
#include "support/temp_dir.h"
#include "support/tensor_compare.h"
#include "support/tensor_file.h"

namespace cachedit {
namespace {

using nlohmann::json;

TEST(CalibratorGolden, ForecastsEqualCacheDits) {
  const auto folder = test::golden("cache_calibrators");
  const json cases = json::parse(test::read_bytes(folder / "cases.json"));
  const test::Tensors values = test::read_tensors(folder / "expected.safetensors");
  int forecasts = 0;
  for (const auto& [name, entry] : cases.items()) {
    SCOPED_TRACE(name);
    cache::Calibrator calibrator(test::golden_calibrator(entry.at("options")), nullptr);
    const auto sequence = entry.at("sequence").get<std::string>();
    for (size_t step = 0; step < sequence.size(); ++step) {
      calibrator.begin_step();
      if (sequence[step] == 'A') {
        const at::Tensor& want = values.at(name + ".A" + std::to_string(step));
        EXPECT_LE(test::relative_error(calibrator.approximate(0), want), 1e-6) << "step " << step;
        ++forecasts;
      } else {
        calibrator.update(values.at(name + ".U" + std::to_string(step)), 0);
      }
    }
  }
  EXPECT_GT(forecasts, 1000);
}

}  // namespace
}  // namespace cachedit
