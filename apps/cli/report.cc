#include "report.h"

#include <sys/resource.h>

#include <cstdio>
#include <sstream>

namespace cachedit::cli {
namespace {

int64_t peak_memory_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;  // Linux counts in KiB
}

}  // namespace

std::string parameters_text(const ImageSettings& s, const GenerateResult& result,
                            const std::string& model) {
  std::ostringstream text;
  text << s.prompt << "\n";
  if (s.negative_prompt) text << "Negative prompt: " << *s.negative_prompt << "\n";
  text << "Steps: " << result.num_inference_steps << ", Sampler: FlowMatchEuler";
  text << ", CFG scale: " << s.true_cfg_scale.value_or(1.0);
  if (result.embeds_guidance) {
    text << ", Distilled CFG scale: " << s.guidance_scale.value_or(3.5);
  }
  text << ", Seed: " << result.seed << ", Size: " << result.width << "x" << result.height;
  if (s.image_path) text << ", Denoising strength: " << s.strength.value_or(0.6);
  text << ", Model: " << model << ", Version: cachedit " CACHEDIT_VERSION;
  return text.str();
}

nlohmann::ordered_json settings_json(const ImageSettings& s, const GenerateResult& result) {
  nlohmann::ordered_json json = {{"prompt", s.prompt},
                                 {"height", result.height},
                                 {"width", result.width},
                                 {"num_inference_steps", result.num_inference_steps},
                                 {"seed", result.seed},
                                 {"num_images_per_prompt", s.num_images_per_prompt.value_or(1)},
                                 {"max_sequence_length", result.max_sequence_length},
                                 {"true_cfg_scale", s.true_cfg_scale.value_or(1.0)}};
  if (result.embeds_guidance) json["guidance_scale"] = s.guidance_scale.value_or(3.5);
  if (s.negative_prompt) json["negative_prompt"] = *s.negative_prompt;
  if (!s.sigmas.empty()) json["sigmas"] = s.sigmas;
  if (s.image_path) {
    json["image_path"] = *s.image_path;
    json["strength"] = s.strength.value_or(0.6);
  }
  return json;
}

nlohmann::ordered_json report_json(const GenerateOptions& options, const std::string& model,
                                   const Pipeline& pipeline, const RunReport& report) {
  nlohmann::ordered_json settings = {{"model_path", model},
                                     {"pipeline", pipeline.class_name()},
                                     {"dtype", pipeline.dtype()},
                                     {"device", pipeline.device()},
                                     {"output_type", options.output_type},
                                     {"vae_tiling", options.vae_tiling},
                                     {"vae_slicing", options.vae_slicing},
                                     {"prompts", report.settings}};
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const OutputRecord& o : report.outputs) {
    outputs.push_back({{"path", o.path},
                       {"prompt", o.prompt},
                       {"seed", o.seed},
                       {"width", o.width},
                       {"height", o.height}});
  }
  return {{"version", CACHEDIT_VERSION},
          {"settings", settings},
          {"seconds",
           {{"load", report.load_seconds},
            {"text", report.seconds.text},
            {"denoise", report.seconds.denoise},
            {"decode", report.seconds.decode},
            {"total", report.total_seconds}}},
          {"step_seconds", report.step_seconds},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"outputs", outputs}};
}

void print_summary(const RunReport& r) {
  std::fprintf(stderr,
               "%zu output(s) in %.2f s: load %.2f, text %.2f, denoise %.2f (%zu steps), decode "
               "%.2f; peak memory %.0f MiB\n",
               r.outputs.size(), r.total_seconds, r.load_seconds, r.seconds.text, r.seconds.denoise,
               r.step_seconds.size(), r.seconds.decode,
               static_cast<double>(peak_memory_bytes()) / (1 << 20));
}

}  // namespace cachedit::cli
