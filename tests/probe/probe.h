// Subcommands of cachedit_probe, which runs single components so that the Python suites can
// compare them with their peers. Each reads its arguments and standard input, writes its result to
// standard output or to the files it is told, and returns an exit code.
#pragma once

#include <string>
#include <vector>

namespace cachedit::probe {

using Arguments = std::vector<std::string>;

int run_tokenize(const Arguments& arguments);
int run_text_encoder(const Arguments& arguments);
int run_schedule(const Arguments& arguments);
int run_vae(const Arguments& arguments);

}  // namespace cachedit::probe
