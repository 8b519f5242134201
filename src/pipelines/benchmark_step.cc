#include <algorithm>

#include "attention/bench/measure.h"
#include "base/cpu.h"
#include "base/fail.h"
#include "cachedit/enable_cache.h"
#include "cachedit/step_benchmark.h"

namespace cachedit {

double StepBenchmark::median_step() const {
  std::vector<double> sorted = step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  if (n == 0) return 0;
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

StepBenchmark benchmark_step(const std::string& model, LoadOptions options, GenerateRequest request,
                             int64_t steps, const std::string& attention_backend) {
  if (steps < 1) fail<InputError>("bench", "steps must be at least 1: got ", steps);
  StepBenchmark benchmark;
  options.profile = std::make_shared<StepProfile>();
  const std::unique_ptr<Pipeline> pipeline = load_pipeline(model, options);
  if (!attention_backend.empty()) set_attn_backend(*pipeline, attention_backend);
  request.output_type = OutputType::kLatent;
  request.num_inference_steps = 1 + steps;
  // The first step meets cold caches and memory that was never touched.
  request.on_step = [&](const StepProgress& progress) {
    if (progress.step == 1) *options.profile = {};
    return true;
  };
  const GenerateResult result = pipeline->generate(request);
  benchmark.step_seconds.assign(result.step_seconds.begin() + 1, result.step_seconds.end());
  benchmark.profile = *options.profile;
  benchmark.attention_backend = result.attention_backend;
  constexpr double kGiga = 1e9;
  const auto roof = [&](kernels::RoofKind kind) {
    return kGiga * attention::bench::measure_roof(kind, cpu_isa());
  };
  benchmark.fp32_roof = roof(kernels::RoofKind::kFloat32);
  benchmark.bf16_roof = roof(kernels::RoofKind::kBFloat16);
  benchmark.int8_roof = roof(kernels::RoofKind::kInt8);
  return benchmark;
}

}  // namespace cachedit
