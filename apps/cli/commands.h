// The subcommands. Each adds itself to the parser; its callback throws a cachedit::Error when it
// fails, which main() turns into a message and an exit code.
#pragma once

#include <CLI/CLI.hpp>

#include "ranks.h"

namespace cachedit::cli {

/// Runs on all ranks that a launcher started; `ranks` must outlive the run.
void add_generate(CLI::App& app, Ranks& ranks);
void add_inspect(CLI::App& app);
void add_compare(CLI::App& app);
void add_backends(CLI::App& app);
void add_bench(CLI::App& app);
void add_bench_step(CLI::App& bench);
void add_bench_gemm(CLI::App& bench);
void add_tune(CLI::App& app);
void add_plan(CLI::App& app);
/// Refuses to run as one of several ranks.
void add_quantize(CLI::App& app, Ranks& ranks);

}  // namespace cachedit::cli
