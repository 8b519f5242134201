#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cachedit/error.h"
#include "commands.h"

namespace {

constexpr int kRunError = 1;
constexpr int kUsageError = 2;
constexpr int kCancelled = 130;  // as a shell reports a program that Ctrl-C ended

int report(cachedit::cli::Ranks& ranks, const std::string& text, int code) {
  const std::string printed = ranks.report_failure(text);
  if (!printed.empty()) std::fprintf(stderr, "cachedit: error: %s\n", printed.c_str());
  return code;
}

/// CLI11 says of an unknown command only that one is needed.
std::string usage_fault(const CLI::App& app, const CLI::ParseError& error) {
  const bool unknown = app.get_subcommands().empty() && app.remaining_size() > 0;
  return "[usage] " +
         (unknown ? "unknown command: got '" + app.remaining().front() + "'" : error.what()) +
         "; --help lists the " + (unknown ? "commands" : "options");
}

/// The arguments in the order that CLI11 takes them, the last one first. It would let the option of
/// "--name=" take its value from the next argument, hence "--name" and "".
std::vector<std::string> split_arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    const bool empty_value = text.starts_with("--") && text.find('=') == text.size() - 1;
    if (empty_value) text.pop_back();
    arguments.push_back(std::move(text));
    if (empty_value) arguments.emplace_back();
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

int parse_and_run(CLI::App& app, cachedit::cli::Ranks& ranks, int argc, char** argv) {
  try {
    app.parse(split_arguments(argc, argv));
    return 0;
  } catch (const CLI::ParseError& error) {
    // Help and version come as "errors" with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    return report(ranks, usage_fault(app, error), kUsageError);
  } catch (const cachedit::Cancelled& error) {
    const std::string printed = ranks.report_failure(error.what());
    if (!printed.empty()) std::fprintf(stderr, "cachedit: %s\n", printed.c_str());
    return kCancelled;
  } catch (const cachedit::InputError& error) {
    return report(ranks, error.what(), kUsageError);
  } catch (const c10::Error& error) {
    return report(ranks, error.what_without_backtrace(), kRunError);
  } catch (const std::exception& error) {
    return report(ranks, error.what(), kRunError);
  }
}

/// What was printed may get lost as late as here: the disk is full, or nobody reads.
int finish_output(int code) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr,
               "cachedit: error: [stdout] the output cannot be written%s%s%s; make room "
               "there, or print elsewhere\n",
               reason != 0 ? ": got \"" : "", reason != 0 ? std::strerror(reason) : "",
               reason != 0 ? "\"" : "");
  return code == 0 ? kRunError : code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Fast diffusion-transformer inference", "cachedit");
  app.set_version_flag("--version", "cachedit " CACHEDIT_VERSION);
  app.require_subcommand(1);
  cachedit::cli::Ranks ranks;
  cachedit::cli::add_generate(app, ranks);
  cachedit::cli::add_inspect(app);
  cachedit::cli::add_compare(app);
  cachedit::cli::add_backends(app);
  cachedit::cli::add_bench(app);
  cachedit::cli::add_tune(app);
  cachedit::cli::add_plan(app);
  cachedit::cli::add_quantize(app, ranks);
  return finish_output(parse_and_run(app, ranks, argc, argv));
}
