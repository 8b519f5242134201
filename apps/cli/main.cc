#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "cachedit/error.h"
#include "commands.h"

namespace {

constexpr int kRunError = 1;
constexpr int kUsageError = 2;
constexpr int kCancelled = 130;  // as a shell reports a program that Ctrl-C ended

int report(const char* text, int code) {
  std::fprintf(stderr, "cachedit: error: %s\n", text);
  return code;
}

int parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    // Help and version come as "errors" with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    return report(("[usage] " + std::string(error.what()) + "; --help lists the options").c_str(),
                  kUsageError);
  } catch (const cachedit::Cancelled& error) {
    std::fprintf(stderr, "cachedit: %s\n", error.what());
    return kCancelled;
  } catch (const cachedit::InputError& error) {
    return report(error.what(), kUsageError);
  } catch (const c10::Error& error) {
    return report(error.what_without_backtrace(), kRunError);
  } catch (const std::exception& error) {
    return report(error.what(), kRunError);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Fast diffusion-transformer inference", "cachedit");
  app.set_version_flag("--version", "cachedit " CACHEDIT_VERSION);
  app.require_subcommand(1);
  cachedit::cli::add_generate(app);
  cachedit::cli::add_inspect(app);
  cachedit::cli::add_compare(app);
  return parse_and_run(app, argc, argv);
}
