// `cachedit quantize`: a checkpoint with quantized layers, from file to file.
#include "cachedit/quantize.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cachedit/error.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "interrupt.h"
#include "quantize_options.h"

namespace cachedit::cli {
namespace {

struct QuantizeFlags {
  QuantizeOptions what;
  std::string model_path;
  std::string save_path;
  std::optional<int64_t> threads;
  bool quiet = false;
};

void run(const QuantizeFlags& flags) {
  install_interrupt_handler();
  if (flags.threads) set_num_threads(*flags.threads);
  QuantizeCheckpointOptions options;
  options.config = *flags.what.make(std::nullopt, "quantize");
  options.on_layer = [&](const std::string& component, int64_t done, int64_t of) {
    if (!flags.quiet && (done % 50 == 0 || done == of)) {
      std::fprintf(stderr, "%s: layer %lld of %lld\n", component.c_str(),
                   static_cast<long long>(done), static_cast<long long>(of));
    }
    return !interrupted();
  };
  const std::string model =
      flags.model_path.empty() ? default_model_path().string() : flags.model_path;
  const auto components = quantize_checkpoint(model, flags.save_path, options);
  if (!flags.quiet) {
    std::fprintf(stderr, "%s\n", quantization_summary(components).c_str());
  }
  std::printf("%s\n", flags.save_path.c_str());
}

}  // namespace

void add_quantize(CLI::App& app, Ranks& ranks) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* command =
      app.add_subcommand("quantize", "Write a checkpoint whose linear layers are quantized");
  command
      ->add_option("--model-path", flags->model_path,
                   "Folder in diffusers' layout, or a hub name in the local Hugging Face cache "
                   "(default: the shipped model)")
      ->check(not_empty());
  command->add_option("--save-path", flags->save_path, "Folder to make")
      ->check(not_empty())
      ->required();
  flags->what.add_to_quantize(*command);
  command->add_option("--threads", flags->threads, "CPU threads (default: one per core)")
      ->check(whole_number());
  command->add_flag("--quiet", flags->quiet, "No progress and no summary on stderr");
  command->callback([flags, &ranks] {
    if (const int64_t size = ranks.world().size(); size > 1) {
      throw InputError("[quantize] one process writes the checkpoint: got " + std::to_string(size) +
                       " ranks; start it without mpirun");
    }
    run(*flags);
  });
}

}  // namespace cachedit::cli
