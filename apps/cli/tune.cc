// `cachedit tune`: the fastest caching configuration that keeps a quality, on the user's prompts.
#include "cachedit/tune.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/error.h"
#include "cachedit/files.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "prompt_file.h"

namespace cachedit::cli {
namespace {

struct TuneFlags {
  TuneOptions what;
  LoadOptions load;
  std::string model_path;
  std::string prompt_file;
  std::string save_path = "tuned.yaml";
  std::string plot;
  std::optional<int64_t> threads;
};

void print_header() {
  std::printf("%-8s %9s %8s %8s  %s\n", "speed-up", "PSNR dB", "lowest", "computed",
              "configuration");
}

void print_trial(const TuneTrial& t) {
  std::printf("%7.2fx %9.2f %8.2f %4lld/%-3lld  %s\n", t.speedup, t.psnr, t.lowest_psnr,
              static_cast<long long>(t.computed_steps),
              static_cast<long long>(t.num_inference_steps), t.name.c_str());
  std::fflush(stdout);
}

/// Where the weights of trials lie while the search runs.
class WorkFolder {
 public:
  WorkFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "cachedit-tune-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw IoError("[tune] cannot make a folder like " + pattern + "; set TMPDIR");
    }
    path_ = pattern;
  }
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void run(TuneFlags flags) {
  check_writable(flags.save_path);
  if (!flags.plot.empty()) check_writable(flags.plot);
  if (flags.threads) set_num_threads(*flags.threads);
  for (const ImageSettings& picture : read_prompt_file(flags.prompt_file, {})) {
    flags.what.prompts.push_back(picture.prompt);
  }
  const std::string model =
      flags.model_path.empty() ? default_model_path().string() : flags.model_path;
  const std::unique_ptr<Pipeline> pipeline = load_pipeline(model, flags.load);
  print_header();
  flags.what.on_trial = print_trial;
  const WorkFolder folder;
  const TuneResult result = tune(*pipeline, flags.what, folder.path());

  std::printf("\nfrontier (uncached: %.2f s of denoising for %lld pictures)\n",
              result.uncached_seconds, static_cast<long long>(result.judging_prompts));
  print_header();
  for (const TuneTrial& trial : result.trials) {
    if (trial.on_frontier) print_trial(trial);
  }
  if (!flags.plot.empty()) {
    write_file(flags.plot, frontier_svg(result));
    std::printf("plot: %s\n", flags.plot.c_str());
  }
  write_best(result, flags.save_path);
  std::printf("best: %s\nwritten to %s; use it with --config-path\n",
              result.trials[*result.best].name.c_str(), flags.save_path.c_str());
}

}  // namespace

void add_tune(CLI::App& app) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* tune = app.add_subcommand(
      "tune", "Find the fastest caching configuration that keeps a quality, on your prompts");
  tune->add_option("--model-path", flags->model_path, "As for generate (default: the demo model)");
  tune->add_option("--prompt-file", flags->prompt_file,
                   "A prompt per line; from 4 on, every fourth judges what the others fit")
      ->required();
  tune->add_option("--target-psnr", flags->what.target_psnr,
                   "Mean PSNR in dB against the uncached pictures (default 30)");
  tune->add_option("--max-runs", flags->what.max_runs, "Configurations to try (default 40)");
  tune->add_option("--steps,--num-inference-steps", flags->what.num_inference_steps,
                   "Denoising steps that the configuration is for");
  tune->add_option("--height", flags->what.height, "Pixels");
  tune->add_option("--width", flags->what.width, "Pixels");
  tune->add_option("--max-sequence-length", flags->what.max_sequence_length, "T5 tokens");
  tune->add_option("--guidance-scale", flags->what.guidance_scale, "Embedded guidance");
  tune->add_option("--true-cfg-scale", flags->what.true_cfg_scale,
                   "Classifier-free guidance with an empty negative prompt");
  tune->add_option("--seed", flags->what.seed, "Of the first picture (default 0)");
  tune->add_option("--dtype", flags->load.dtype, "auto, fp32, bf16 or fp16");
  tune->add_option("--device", flags->load.device, "auto, cpu, cuda, cuda:N");
  tune->add_option("--threads", flags->threads, "CPU threads (default: one per core)");
  tune->add_option("--save-path", flags->save_path, "YAML file (default tuned.yaml)");
  tune->add_option("--plot", flags->plot, "Also draw the trials into this SVG file");
  tune->callback([flags] { run(*flags); });
}

}  // namespace cachedit::cli
