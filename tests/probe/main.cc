// Picks a subcommand of the probe by name. To add one: declare it in probe.h, define it in a file
// of its own, and list it in kCommands.
#include <algorithm>
#include <exception>
#include <iostream>
#include <string_view>

#include "probe.h"

namespace {

using cachedit::probe::Arguments;

struct Command {
  std::string_view name;
  std::string_view usage;
  int (*run)(const Arguments&);
};

constexpr Command kCommands[] = {
    {"tokenize", "clip|t5 FOLDER < lines of {\"text\": .., \"max_length\": ..}",
     cachedit::probe::run_tokenize},
    {"text-encoder", "clip|t5 FOLDER DTYPE OUT < {\"<name>\": [[id, ..], ..], ..}",
     cachedit::probe::run_text_encoder},
    {"schedule", "< lines of {\"config\": .., \"request\": ..}", cachedit::probe::run_schedule},
    {"vae", "encode|decode FOLDER IN OUT OPTIONS", cachedit::probe::run_vae},
};

int print_usage() {
  std::cerr << "usage: cachedit_probe COMMAND ARGUMENTS\n";
  for (const Command& command : kCommands) {
    std::cerr << "  " << command.name << ' ' << command.usage << '\n';
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return print_usage();
  const std::string_view name = argv[1];
  const auto* command =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const Command& candidate) { return candidate.name == name; });
  if (command == std::end(kCommands)) return print_usage();
  try {
    return command->run(Arguments(argv + 2, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
