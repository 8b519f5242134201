#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>

#include "cachedit/attention.h"
#include "cachedit/enable_cache.h"
#include "cachedit/error.h"
#include "cachedit/files.h"
#include "cachedit/log.h"
#include "cachedit/pipeline.h"
#include "commands.h"
#include "generate_options.h"
#include "interrupt.h"
#include "output_names.h"
#include "progress.h"
#include "prompt_file.h"
#include "report.h"

namespace cachedit::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

GenerateRequest make_request(const ImageSettings& s, const GenerateOptions& options) {
  GenerateRequest request;
  request.prompt = {s.prompt};
  if (s.negative_prompt) request.negative_prompt = {*s.negative_prompt};
  request.true_cfg_scale = s.true_cfg_scale.value_or(request.true_cfg_scale);
  request.guidance_scale = s.guidance_scale.value_or(request.guidance_scale);
  request.height = s.height;
  request.width = s.width;
  request.num_inference_steps = s.num_inference_steps;
  if (s.seed && *s.seed >= 0) request.seed = static_cast<uint64_t>(*s.seed);
  request.num_images_per_prompt = s.num_images_per_prompt.value_or(1);
  request.max_sequence_length = s.max_sequence_length;
  if (s.image_path) request.image = read_image(*s.image_path);
  request.strength = s.strength.value_or(request.strength);
  request.sigmas = s.sigmas;
  request.output_type = options.output_type == "latent" ? OutputType::kLatent : OutputType::kImage;
  request.vae_tiling = options.vae_tiling;
  request.vae_slicing = options.vae_slicing;
  return request;
}

/// Files and threads may differ from machine to machine, all else must not.
void require_same_arguments(const CLI::App& command, const World& world) {
  if (world.size() == 1) return;
  std::istringstream given(command.config_to_str());
  std::string text;
  for (std::string line; std::getline(given, line);) {
    bool local = false;
    for (const char* name : {"model-path=", "save-path=", "json=", "contact-sheet=", "device=",
                             "threads=", "quiet=", "op-library=", "prompt-file=", "config-path="}) {
      local |= line.starts_with(name);
    }
    if (!local) text += line + "\n";
  }
  world.require_equal("arguments", text);
}

/// A file of quantization and a layout only, which the load has seen to, would otherwise ask for
/// caching with its defaults.
bool chooses_something(const EnableCacheOptions& o) {
  return !std::holds_alternative<std::monostate>(o.cache_config) || !o.attention_backend.empty() ||
         !o.parallelism_config.attention_backend.empty();
}

/// One call of the command: everything that outlives a single picture.
class GenerateRun {
 public:
  GenerateRun(const GenerateOptions& options, Ranks& ranks)
      : options_(options),
        world_(ranks.world()),
        speaks_(ranks.speaks()),
        names_(options.save_path, options.format, options.output_type == "latent"),
        model_(options.model_path.empty() ? default_model_path().string() : options.model_path) {
    for (const std::string& path : {options.json, options.contact_sheet}) {
      if (!path.empty() && speaks_) check_writable(path);
    }
    if (!options.contact_sheet.empty()) sheet_format();
    report_.format = names_.extension();
    report_.cache_options = options.cache.make();
    const ParallelismConfig file =
        report_.cache_options ? report_.cache_options->parallelism_config : ParallelismConfig();
    parallelism_ = options.parallel.make(file, world_.size());
    report_.quantize_config = options.quantize.make(
        report_.cache_options ? report_.cache_options->quantize_config : std::nullopt, "generate");
    if (report_.cache_options) {
      report_.cache_options->quantize_config.reset();
      // Layout and quantization are chosen when the model loads; only the backend is left to
      // enable_cache().
      report_.cache_options->parallelism_config = {.attention_backend = file.attention_backend};
    }
    if (!speaks_) set_log_level(LogLevel::kError);
  }

  void run() {
    const std::vector<ImageSettings> all =
        options_.prompt_file.empty() ? std::vector<ImageSettings>{options_.settings}
                                     : read_prompt_file(options_.prompt_file, options_.settings);
    check_image_settings(all);
    const Clock::time_point start = Clock::now();
    set_threads();
    for (const std::string& library : options_.op_libraries) attention::load_op_library(library);
    pipeline_ = load_pipeline(model_, {.dtype = options_.dtype,
                                       .device = options_.device,
                                       .world = world_,
                                       .parallelism_config = parallelism_,
                                       .quantize_config = report_.quantize_config});
    report_.quantization = pipeline_->quantization();
    if (!options_.attention_backend.empty()) {
      set_attn_backend(*pipeline_, options_.attention_backend);
    }
    if (report_.cache_options) enable_caching();
    report_.load_seconds = seconds_since(start);
    stop_if_interrupted();
    for (const ImageSettings& s : all) total_ += outputs_of(s);
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string label =
          all.size() == 1 ? ""
                          : "[" + std::to_string(i + 1) + "/" + std::to_string(all.size()) + "]";
      make_pictures(all[i], label);
    }
    world_.barrier();  // no rank is done before all of them are
    if (speaks_) finish(seconds_since(start));
  }

 private:
  void finish(double total_seconds) {
    if (!options_.contact_sheet.empty()) write_sheet();
    if (report_.pairs.size() > 1) {
      std::printf("all: %s\n", pair_text(total_of(report_.pairs)).c_str());
    }
    report_.total_seconds = total_seconds;
    if (!options_.json.empty()) {
      write_file(options_.json, to_text(report_json(options_, model_, *pipeline_, report_)));
    }
    if (!options_.quiet) print_summary(report_);
  }

  /// Ranks of one machine share its cores.
  void set_threads() const {
    const int64_t local = world_.size() > 1 ? world_.local_size() : 1;
    if (options_.threads) {
      set_num_threads(*options_.threads);
      return;
    }
    const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
    // Fewer than all of them were asked for (OMP_NUM_THREADS) or are ours (process binding).
    const bool chosen = at::get_num_threads() != cores;
    if (local > 1 && !chosen) set_num_threads(std::max<int64_t>(1, cores / local));
  }

  /// Latents of a whole batch go into one file.
  int64_t outputs_of(const ImageSettings& settings) const {
    return names_.extension() == "safetensors" ? 1 : settings.num_images_per_prompt.value_or(1);
  }

  /// Values out of range are the caller's fault, unless a file holds them.
  void enable_caching() {
    if (!chooses_something(*report_.cache_options)) return;
    try {
      enable_cache(*pipeline_, *report_.cache_options);
    } catch (const ConfigError& error) {
      if (options_.cache.reads_file()) throw;
      throw InputError(error.what());
    }
  }

  GenerateResult draw(GenerateRequest request, const std::string& label) const {
    Progress progress(options_.quiet || !speaks_, label);
    request.on_step = [&](const StepProgress& step) {
      progress.update(step);
      return !interrupted();
    };
    return pipeline_->generate(request);
  }

  /// Without caching, before the picture with it.
  GenerateResult draw_plain(const GenerateRequest& request, const std::string& label) {
    disable_cache(*pipeline_);
    GenerateResult plain = draw(request, label + (label.empty() ? "plain" : " plain"));
    enable_cache(*pipeline_, *report_.cache_options);
    return plain;
  }

  void make_pictures(const ImageSettings& settings, const std::string& label) {
    GenerateRequest request = make_request(settings, options_);
    std::vector<Image> plain;
    GenerateResult result;
    if (options_.cache.compare()) {
      GenerateResult without = draw_plain(request, label);
      request.seed = without.seed;
      result = draw(request, label);
      if (speaks_) report_.pairs.push_back(compare_pair(without, result));
      plain = std::move(without.images);
    } else {
      result = draw(request, label);
    }
    if (!speaks_) return;
    record(settings, result);
    if (result.latents.defined()) {
      write_latents(settings, result);
      return;
    }
    const std::string text = parameters_text(settings, result, model_);
    const auto copies = static_cast<int64_t>(result.images.size());
    for (int64_t copy = 0; copy < copies; ++copy) {
      const Image& image = result.images[static_cast<size_t>(copy)];
      const std::filesystem::path path = next_path(settings, result, copy, copies);
      write_image(
          path, image,
          {.format = parse_image_format(names_.extension()), .text = {{"parameters", text}}});
      announce(path, settings, result);
      if (options_.contact_sheet.empty()) continue;
      if (!plain.empty()) sheet_.push_back(plain[static_cast<size_t>(copy)]);
      sheet_.push_back(image);
    }
    if (options_.cache.compare()) std::printf("  %s\n", pair_text(report_.pairs.back()).c_str());
  }

  void write_latents(const ImageSettings& settings, const GenerateResult& result) {
    const std::filesystem::path path = next_path(settings, result, 0, 1);
    write_tensors(path, {{"latents", result.latents}},
                  {{"height", std::to_string(result.height)},
                   {"width", std::to_string(result.width)},
                   {"parameters", parameters_text(settings, result, model_)}});
    announce(path, settings, result);
  }

  std::filesystem::path next_path(const ImageSettings& settings, const GenerateResult& result,
                                  int64_t copy, int64_t copies) {
    return names_.path(settings.prompt, result.width, result.height, result.seed, next_++, total_,
                       copy, copies);
  }

  void record(const ImageSettings& settings, const GenerateResult& result) {
    report_.attention_backends.insert(result.attention_backend);
    for (auto& context : cache_stats_json(result, calls_++)) report_.cache.push_back(context);
    if (options_.cache.summary()) {
      std::fprintf(stderr, "%s%s\n", summary(result).c_str(), brief_summary(result).c_str());
    }
    report_.parallel.layout = result.parallel.layout;
    report_.parallel.ranks = result.parallel.ranks;
    report_.parallel.bytes_sent += result.parallel.bytes_sent;
    report_.parallel.messages_sent += result.parallel.messages_sent;
    report_.parallel.seconds += result.parallel.seconds;
    report_.seconds.text += result.seconds.text;
    report_.seconds.denoise += result.seconds.denoise;
    report_.seconds.decode += result.seconds.decode;
    report_.step_seconds.insert(report_.step_seconds.end(), result.step_seconds.begin(),
                                result.step_seconds.end());
    report_.settings.push_back(settings_json(settings, result));
  }

  void announce(const std::filesystem::path& path, const ImageSettings& settings,
                const GenerateResult& result) {
    report_.outputs.push_back({.path = path.string(),
                               .prompt = settings.prompt,
                               .seed = result.seed,
                               .width = result.width,
                               .height = result.height});
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);
  }

  ImageFormat sheet_format() const {
    return parse_image_format(std::filesystem::path(options_.contact_sheet).extension().string());
  }

  void write_sheet() const {
    constexpr int64_t kColumns = 4;
    write_image(options_.contact_sheet, contact_sheet(sheet_, kColumns),
                {.format = sheet_format()});
    std::printf("%s\n", options_.contact_sheet.c_str());
  }

  const GenerateOptions& options_;
  World world_;
  bool speaks_;
  ParallelismConfig parallelism_;
  OutputNames names_;
  std::string model_;
  std::unique_ptr<Pipeline> pipeline_;
  RunReport report_;
  std::vector<Image> sheet_;
  int64_t next_ = 0;
  int64_t total_ = 0;
  int64_t calls_ = 0;
};

}  // namespace

void add_generate(CLI::App& app, Ranks& ranks) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Generate pictures from prompts");
  add_generate_options(*command, *options);
  command->callback([options, command, &ranks] {
    options->has_prompt = command->count("--prompt") > 0;
    check_generate_options(*options);
    install_interrupt_handler();
    require_same_arguments(*command, ranks.world());
    GenerateRun(*options, ranks).run();
  });
}

}  // namespace cachedit::cli
