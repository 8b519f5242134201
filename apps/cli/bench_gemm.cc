// `cachedit bench gemm`: the kernels of linear layers alone.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cachedit/files.h"
#include "cachedit/gemm_benchmark.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct GemmOptions {
  std::optional<int64_t> threads;
  std::string json;
};

void run(const GemmOptions& options) {
  if (!options.json.empty()) check_writable(options.json);
  if (options.threads) set_num_threads(*options.threads);
  nlohmann::ordered_json records = nlohmann::ordered_json::array();
  std::printf("%-20s %6s %6s %6s %10s %8s\n", "form", "M", "N", "K", "GFLOP/s", "% roof");
  for (const GemmRecord& r : benchmark_gemm()) {
    std::printf("%-20s %6ld %6ld %6ld %10.1f %8.1f\n", r.form.c_str(), static_cast<long>(r.m),
                static_cast<long>(r.n), static_cast<long>(r.k), r.gflops, r.percent_of_roof);
    records.push_back({{"form", r.form},
                       {"m", r.m},
                       {"n", r.n},
                       {"k", r.k},
                       {"gflops", r.gflops},
                       {"percent_of_roof", r.percent_of_roof}});
  }
  if (!options.json.empty()) write_file(options.json, to_text(records));
}

}  // namespace

void add_bench_gemm(CLI::App& bench) {
  auto options = std::make_shared<GemmOptions>();
  CLI::App* command = bench.add_subcommand(
      "gemm", "Speed of linear layers' kernels in every form, at FLUX.1's shapes");
  command->add_option("--threads", options->threads, "CPU threads (default: one per core)")
      ->check(whole_number());
  command->add_option("--json", options->json, "Also write the records to this file")
      ->check(not_empty());
  command->callback([options] { run(*options); });
}

}  // namespace cachedit::cli
