// `cachedit bench gemm`: the kernels of linear layers alone.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/files.h"
#include "cachedit/gemm_benchmark.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "report.h"

namespace cachedit::cli {
namespace {

struct GemmOptions {
  GemmBenchmarkOptions what;
  std::optional<int64_t> threads;
  std::string json;
};

nlohmann::ordered_json to_json(const GemmRecord& r) {
  nlohmann::ordered_json json = {{"form", r.form},
                                 {"m", r.m},
                                 {"n", r.n},
                                 {"k", r.k},
                                 {"gflops", r.gflops},
                                 {"percent_of_roof", r.percent_of_roof},
                                 {"weight_gb_per_s", nullptr},
                                 {"memory_roof_gb_per_s", nullptr},
                                 {"percent_of_memory_roof", nullptr}};
  if (r.reading) {
    json["weight_gb_per_s"] = r.reading->gb_per_s;
    json["memory_roof_gb_per_s"] = r.reading->roof_gb_per_s;
    json["percent_of_memory_roof"] = r.reading->percent_of_roof;
  }
  return json;
}

void print_header() {
  std::printf("%-20s %6s %6s %6s %10s %8s %13s %11s %13s\n", "form", "M", "N", "K", "GFLOP/s",
              "% roof", "weights GB/s", "memory GB/s", "% of memory");
}

void print_row(const GemmRecord& r) {
  std::printf("%-20s %6ld %6ld %6ld %10.1f %8.1f", r.form.c_str(), static_cast<long>(r.m),
              static_cast<long>(r.n), static_cast<long>(r.k), r.gflops, r.percent_of_roof);
  if (r.reading) {
    std::printf(" %13.1f %11.1f %13.1f\n", r.reading->gb_per_s, r.reading->roof_gb_per_s,
                r.reading->percent_of_roof);
  } else {
    std::printf(" %13s %11s %13s\n", "-", "-", "-");
  }
  std::fflush(stdout);  // the next row may take some seconds
}

void run(GemmOptions options) {
  if (!options.json.empty()) check_writable(options.json);
  if (options.threads) set_num_threads(*options.threads);
  bool first = true;
  options.what.on_record = [&](const GemmRecord& record) {
    if (first) print_header();
    first = false;
    print_row(record);
  };
  nlohmann::ordered_json records = nlohmann::ordered_json::array();
  for (const GemmRecord& record : benchmark_gemm(options.what)) records.push_back(to_json(record));
  if (!options.json.empty()) write_file(options.json, to_text(records));
}

}  // namespace

void add_bench_gemm(CLI::App& bench) {
  auto options = std::make_shared<GemmOptions>();
  CLI::App* command = bench.add_subcommand(
      "gemm", "Speed of linear layers' kernels in every form, at FLUX.1's shapes");
  std::string forms;
  for (const std::string& form : gemm_benchmark_forms())
    forms += (forms.empty() ? "" : ", ") + form;
  command->add_option("--form", options->what.forms, "Comma separated (default: all): " + forms)
      ->delimiter(',')
      ->check(not_empty());
  command
      ->add_option("--rows", options->what.rows,
                   "Rows of the activations, comma separated (default: 1536, 16, 1)")
      ->delimiter(',')
      ->check(whole_number());
  command
      ->add_option("--repeats", options->what.repeats,
                   "Runs of each shape, the fastest of which counts (default 8)")
      ->check(whole_number());
  command->add_option("--threads", options->threads, "CPU threads (default: one per core)")
      ->check(whole_number());
  command->add_option("--json", options->json, "Also write the records to this file")
      ->check(not_empty());
  command->callback([options] { run(*options); });
}

}  // namespace cachedit::cli
