#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/benchmark.h"
#include "cachedit/error.h"
#include "cachedit/files.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct BenchOptions {
  attention::BenchmarkOptions what;
  std::optional<int64_t> threads;
  std::string json;
};

nlohmann::ordered_json to_json(const attention::BenchmarkRecord& r) {
  return {{"case", r.name},
          {"backend", r.backend},
          {"dtype", r.dtype},
          {"isa", r.isa},
          {"ms", r.ms},
          {"gflops", r.gflops},
          {"roof_gflops", r.roof_gflops},
          {"ratio_to_sdpa", r.ratio_to_sdpa},
          {"cosine", r.cosine},
          {"rel_l1", r.rel_l1},
          {"scratch_bytes", r.scratch_bytes}};
}

void print_header() {
  std::printf("%-15s %-19s %-5s %-12s %10s %8s %8s %6s %7s %9s %8s %11s\n", "case", "backend",
              "dtype", "isa", "ms", "GFLOP/s", "roof", "% roof", "x SDPA", "cosine", "rel L1",
              "scratch MiB");
}

void print_row(const attention::BenchmarkRecord& r) {
  std::printf("%-15s %-19s %-5s %-12s %10.2f %8.1f %8.1f %6.1f %7.2f %9.6f %8.1e %11.2f\n",
              r.name.c_str(), r.backend.c_str(), r.dtype.c_str(), r.isa.c_str(), r.ms, r.gflops,
              r.roof_gflops, 100 * r.gflops / r.roof_gflops, r.ratio_to_sdpa, r.cosine, r.rel_l1,
              static_cast<double>(r.scratch_bytes) / (1 << 20));
  std::fflush(stdout);  // the next row may take a minute
}

void run_attention(BenchOptions options) {
  if (!options.json.empty()) check_writable(options.json);
  if (options.threads) set_num_threads(*options.threads);
  bool first = true;
  options.what.on_note = [](const std::string& note) {
    std::fprintf(stderr, "%s\n", note.c_str());
  };
  options.what.on_record = [&](const attention::BenchmarkRecord& record) {
    if (first) print_header();
    first = false;
    print_row(record);
  };
  nlohmann::ordered_json records = nlohmann::ordered_json::array();
  for (const auto& record : attention::run_benchmark(options.what)) {
    records.push_back(to_json(record));
  }
  if (!options.json.empty()) write_file(options.json, to_text(records));
}

std::string list_of_cases() {
  std::string list = "Cases:\n";
  for (const auto& c : attention::benchmark_cases()) {
    list += "  " + c.name + std::string(c.name.size() < 16 ? 16 - c.name.size() : 1, ' ') +
            c.description + (c.is_default ? "\n" : " (only on request)\n");
  }
  return list;
}

void add_bench_attention(CLI::App& bench) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command = bench.add_subcommand(
      "attention", "Time, accuracy and scratch memory of the attention backends on this CPU");
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* help) {
    command->add_option(name, values, help)->delimiter(',')->check(not_empty());
  };
  list("--case", options->what.cases, "Cases, comma separated (default: see below)");
  list("--attn", options->what.backends,
       "Backends, comma separated (default: all that run on the CPU)");
  list("--dtype", options->what.dtypes, "fp32, bf16, fp16, comma separated (default: all)");
  command
      ->add_option("--repeats", options->what.repeats,
                   "Runs of each backend, in turn with SDPA (default 5)")
      ->check(whole_number());
  command->add_option("--threads", options->threads, "CPU threads (default: one per core)")
      ->check(whole_number());
  command->add_option("--json", options->json, "Also write the records to this file")
      ->check(not_empty());
  command->footer(list_of_cases());
  command->callback([options] { run_attention(*options); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measure parts of cachedit on this machine");
  add_bench_attention(*command);
  add_bench_step(*command);
  add_bench_gemm(*command);
  command->callback([command] {
    if (!command->get_subcommands().empty()) return;
    throw InputError(
        "[bench] needs what to measure: got nothing; use `cachedit bench attention`, `bench step` "
        "or `bench gemm`");
  });
}

}  // namespace cachedit::cli
