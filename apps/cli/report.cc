#include "report.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "cachedit/enable_cache.h"

namespace cachedit::cli {
namespace {

int64_t peak_memory_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;  // Linux counts in KiB
}

/// Steps that were asked for: image to image runs only the last of them.
int64_t steps_asked(const ImageSettings& s, const GenerateResult& result) {
  constexpr int64_t kDefaultSteps = 28;
  if (s.num_inference_steps) return *s.num_inference_steps;
  if (!s.sigmas.empty()) return static_cast<int64_t>(s.sigmas.size());
  return s.image_path ? kDefaultSteps : result.num_inference_steps;
}

/// A folder's own name, since pictures get passed on and its path is nobody's business.
std::string model_name(const std::string& model) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(model, ignored)) return model;  // a hub name
  std::filesystem::path path = std::filesystem::absolute(model, ignored).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  return nlohmann::json::parse(nlohmann::json(path.filename().string())
                                   .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
      .get<std::string>();
}

/// "flash", or, where the calls differ, "flash; ffpa, flash".
std::string attention_that_ran(const RunReport& report) {
  std::string names;
  for (const std::string& call : report.attention_backends) {
    names += (names.empty() ? "" : "; ") + call;
  }
  return names;
}

nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

/// The type that was asked for or, where the checkpoint decides, what the transformer's layers are.
nlohmann::ordered_json quantize_type(const RunReport& report) {
  if (report.quantize_config) return or_null(report.quantize_config->quant_type);
  std::set<std::string> types;
  for (const ComponentQuantization& c : report.quantization) {
    if (c.component != "transformer") continue;
    for (const LayerQuantization& layer : c.layers) {
      if (!layer.type.empty()) types.insert(layer.type);
    }
  }
  std::string text;
  for (const std::string& type : types) text += (text.empty() ? "" : ", ") + type;
  return or_null(text);
}

nlohmann::ordered_json quantization_json(const std::vector<ComponentQuantization>& components) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const ComponentQuantization& c : components) {
    nlohmann::ordered_json types = nlohmann::ordered_json::object();
    nlohmann::ordered_json notes = nlohmann::ordered_json::object();
    for (const LayerQuantization& layer : c.layers) {
      if (!layer.type.empty()) types[layer.type] = types.value(layer.type, int64_t{0}) + 1;
      if (!layer.note.empty()) notes[layer.layer] = layer.note;
    }
    all.push_back({{"component", c.component},
                   {"linear_layers", c.layers.size()},
                   {"quantized_layers", c.quantized_layers()},
                   {"types", types},
                   {"notes", notes},
                   {"stored_bytes", c.stored_bytes},
                   {"bytes", c.bytes}});
  }
  return all;
}

}  // namespace

std::string parameters_text(const ImageSettings& s, const GenerateResult& result,
                            const std::string& model) {
  std::ostringstream text;
  text << s.prompt << "\n";
  if (s.negative_prompt) text << "Negative prompt: " << *s.negative_prompt << "\n";
  text << "Steps: " << steps_asked(s, result) << ", Sampler: FlowMatchEuler";
  text << ", CFG scale: " << s.true_cfg_scale.value_or(1.0);
  if (result.embeds_guidance) {
    text << ", Distilled CFG scale: " << s.guidance_scale.value_or(3.5);
  }
  text << ", Seed: " << result.seed << ", Size: " << result.width << "x" << result.height;
  if (s.image_path) text << ", Denoising strength: " << s.strength.value_or(0.6);
  if (!result.cache.empty()) text << ", Cache: " << brief_summary(result);
  text << ", Model: " << model_name(model) << ", Version: cachedit " CACHEDIT_VERSION;
  return text.str();
}

nlohmann::ordered_json settings_json(const ImageSettings& s, const GenerateResult& result) {
  nlohmann::ordered_json json = {{"prompt", s.prompt},
                                 {"height", result.height},
                                 {"width", result.width},
                                 {"num_inference_steps", steps_asked(s, result)},
                                 {"seed", result.seed},
                                 {"num_images_per_prompt", s.num_images_per_prompt.value_or(1)},
                                 {"max_sequence_length", result.max_sequence_length},
                                 {"true_cfg_scale", s.true_cfg_scale.value_or(1.0)}};
  if (result.embeds_guidance || s.guidance_scale)
    json["guidance_scale"] = s.guidance_scale.value_or(3.5);
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
                                     {"attention_backend", attn_backend(pipeline)},
                                     {"cache", cache_settings_json(report.cache_options)},
                                     {"quantize_type", quantize_type(report)},
                                     {"op_libraries", options.op_libraries},
                                     {"threads", at::get_num_threads()},
                                     {"prompt_file", or_null(options.prompt_file)},
                                     {"save_path", or_null(options.save_path)},
                                     {"format", report.format},
                                     {"contact_sheet", or_null(options.contact_sheet)},
                                     {"output_type", options.output_type},
                                     {"vae_tiling", options.vae_tiling},
                                     {"vae_slicing", options.vae_slicing},
                                     {"quiet", options.quiet},
                                     {"prompts", report.settings}};
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (const OutputRecord& o : report.outputs) {
    outputs.push_back({{"path", o.path},
                       {"prompt", o.prompt},
                       {"seed", o.seed},
                       {"width", o.width},
                       {"height", o.height}});
  }
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const CachePair& p : report.pairs) {
    nlohmann::ordered_json psnr = p.psnr;
    if (std::isinf(p.psnr)) psnr = nullptr;  // equal; JSON has no infinity
    pairs.push_back(
        {{"plain_seconds", p.plain_seconds}, {"cached_seconds", p.cached_seconds}, {"psnr", psnr}});
  }
  nlohmann::ordered_json parallel;  // null for one process
  if (report.parallel.ranks > 1) {
    parallel = {{"layout", report.parallel.layout},
                {"ranks", report.parallel.ranks},
                {"bytes_sent", report.parallel.bytes_sent},
                {"messages", report.parallel.messages_sent},
                {"seconds", report.parallel.seconds}};
  }
  return {{"version", CACHEDIT_VERSION},
          {"settings", settings},
          {"attention_backend", attention_that_ran(report)},
          {"seconds",
           {{"load", report.load_seconds},
            {"text", report.seconds.text},
            {"denoise", report.seconds.denoise},
            {"decode", report.seconds.decode},
            {"total", report.total_seconds}}},
          {"step_seconds", report.step_seconds},
          {"cache", report.cache},
          {"cache_comparison", pairs},
          {"parallel", parallel},
          {"quantization", quantization_json(report.quantization)},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"outputs", outputs}};
}

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void print_summary(const RunReport& r) {
  std::fprintf(stderr,
               "%zu output(s) in %.2f s: load %.2f, text %.2f, denoise %.2f (%zu steps), decode "
               "%.2f; attention %s; peak memory %.0f MiB\n",
               r.outputs.size(), r.total_seconds, r.load_seconds, r.seconds.text, r.seconds.denoise,
               r.step_seconds.size(), r.seconds.decode, attention_that_ran(r).c_str(),
               static_cast<double>(peak_memory_bytes()) / (1 << 20));
  const std::string quantized = quantization_summary(r.quantization);
  if (!quantized.empty()) std::fprintf(stderr, "%s\n", quantized.c_str());
  if (r.parallel.ranks == 1) return;
  std::fprintf(stderr, "%ld ranks, %s: rank 0 sent %.1f MiB and exchanged for %.2f s\n",
               static_cast<long>(r.parallel.ranks), r.parallel.layout.c_str(),
               static_cast<double>(r.parallel.bytes_sent) / (1 << 20), r.parallel.seconds);
}

}  // namespace cachedit::cli
