// `cachedit bench step`: seconds of a transformer's denoising step, and what they go into.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cachedit/files.h"
#include "cachedit/pipeline.h"
#include "cachedit/step_benchmark.h"
#include "commands.h"
#include "generate_options.h"
#include "quantize_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct StepOptions {
  std::string model_path;
  LoadOptions load;
  QuantizeOptions quantize;
  GenerateRequest request;
  std::string attention_backend;
  std::optional<int64_t> threads;
  int64_t steps = 3;
  bool breakdown = false;
  std::string json;
};

/// The time that neither linear layers nor attention took.
double rest_of(const StepBenchmark& b) {
  double all = 0;
  for (const double seconds : b.step_seconds) all += seconds;
  return all - b.profile.linear_seconds - b.profile.attention_seconds;
}

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

nlohmann::ordered_json to_json(const StepBenchmark& b) {
  return {{"step_seconds", b.step_seconds},
          {"median_step", b.median_step()},
          {"attention_backend", b.attention_backend},
          {"linear_seconds", b.profile.linear_seconds},
          {"linear_operations", b.profile.linear_operations},
          {"attention_seconds", b.profile.attention_seconds},
          {"attention_operations", b.profile.attention_operations},
          {"other_seconds", rest_of(b)},
          {"fp32_roof", b.fp32_roof},
          {"bf16_roof", b.bf16_roof},
          {"int8_roof", b.int8_roof}};
}

void print_part(const char* name, double seconds, double operations, const StepBenchmark& b) {
  const auto steps = static_cast<double>(b.step_seconds.size());
  std::printf("%-16s %8.3f s/step %6.1f %%", name, seconds / steps,
              100 * seconds / sum(b.step_seconds));
  if (operations > 0 && seconds > 0) std::printf(" %8.1f GFLOP/s", operations / seconds / 1e9);
  std::printf("\n");
}

void print(const StepBenchmark& b, bool breakdown) {
  std::printf("%.3f s/step (median of %zu), attention %s\n", b.median_step(), b.step_seconds.size(),
              b.attention_backend.c_str());
  if (!breakdown) return;
  print_part("linear layers", b.profile.linear_seconds, b.profile.linear_operations, b);
  print_part("attention", b.profile.attention_seconds, b.profile.attention_operations, b);
  print_part("other operators", rest_of(b), 0, b);
  std::printf("roofs: fp32 %.0f, bf16 %.0f, int8 %.0f GFLOP/s\n", b.fp32_roof / 1e9,
              b.bf16_roof / 1e9, b.int8_roof / 1e9);
}

void run(StepOptions& o) {
  if (!o.json.empty()) check_writable(o.json);
  if (o.threads) set_num_threads(*o.threads);
  const std::string model = o.model_path.empty() ? default_model_path().string() : o.model_path;
  o.load.quantize_config = o.quantize.make({}, "bench step");
  o.request.prompt = {"red apple"};
  o.request.seed = 1;
  const StepBenchmark result =
      benchmark_step(model, o.load, o.request, o.steps, o.attention_backend);
  print(result, o.breakdown);
  if (!o.json.empty()) write_file(o.json, to_text(to_json(result)));
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  auto o = std::make_shared<StepOptions>();
  CLI::App* command = bench.add_subcommand("step", "Seconds of a transformer's denoising step");
  command->add_option("--model-path", o->model_path, "As for generate (default: the shipped model)")
      ->check(not_empty());
  command->add_option("--height", o->request.height, "Pixels")->check(whole_number());
  command->add_option("--width", o->request.width, "Pixels")->check(whole_number());
  command->add_option("--max-sequence-length", o->request.max_sequence_length, "Text tokens")
      ->check(whole_number());
  command->add_option("--dtype", o->load.dtype, "auto, fp32, bf16 or fp16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  command->add_option("--attn,--attention-backend", o->attention_backend, "As for generate")
      ->check(not_empty());
  o->quantize.add_to(*command);
  command->add_option("--steps", o->steps, "Steps to measure, after one that is not (default 3)")
      ->check(whole_number());
  command->add_option("--threads", o->threads, "CPU threads (default: one per core)")
      ->check(whole_number());
  command->add_flag("--breakdown", o->breakdown,
                    "Also the parts: linear layers, attention, other operators, and the roofs");
  command->add_option("--json", o->json, "Also write the figures to this file")->check(not_empty());
  command->callback([o] { run(*o); });
}

}  // namespace cachedit::cli
