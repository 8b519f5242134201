#include "generate_options.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cachedit/attention.h"
#include "cachedit/error.h"

namespace cachedit::cli {
namespace {

void add_image_options(CLI::App& command, ImageSettings& s) {
  command.add_option("--prompt", s.prompt, "What to draw");
  command.add_option("--negative-prompt", s.negative_prompt,
                     "What to steer away from; needs --true-cfg-scale above 1");
  command.add_option("--true-cfg-scale", s.true_cfg_scale,
                     "Classifier-free guidance with a second pass per step (default 1: off)");
  command.add_option("--guidance-scale", s.guidance_scale,
                     "Embedded guidance of distilled models (default 3.5)");
  const auto integer = [&](const char* names, std::optional<int64_t>& value, const char* help) {
    return command.add_option(names, value, help)->check(whole_number());
  };
  integer("--height", s.height, "Pixels (default: the checkpoint's size)");
  integer("--width", s.width, "Pixels (default: the checkpoint's size)");
  integer("--num-inference-steps,--steps", s.num_inference_steps,
          "Denoising steps (default 28, or the number of --sigmas)");
  integer("--seed", s.seed, "0 or more; -1 or none: random, and printed")
      ->check(CLI::Range(int64_t{-1}, std::numeric_limits<int64_t>::max()));
  integer("--num-images-per-prompt", s.num_images_per_prompt,
          "Pictures of each prompt, from one seed (default 1)");
  integer("--max-sequence-length", s.max_sequence_length,
          "T5 tokens, at most 512 (default: tokenizer_2's limit)");
  command.add_option("--image-path", s.image_path, "Start from this picture (image to image)")
      ->check(not_empty());
  command.add_option("--strength", s.strength,
                     "How far to leave --image-path, in (0, 1] (default 0.6)");
  command.add_option("--sigmas", s.sigmas, "Custom noise levels, comma separated, without the 0")
      ->delimiter(',');
}

/// Throws InputError unless a PNG text chunk and a JSON report can hold `text`.
void check_text(const std::string& text, const char* field) {
  std::string fault;
  if (text.find('\0') != std::string::npos) fault = "a zero byte";
  try {
    nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    fault = "bytes that are not UTF-8";
  }
  if (fault.empty()) return;
  const std::string shown =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  throw InputError(std::string("[") + field + "] must be UTF-8 text: got " + fault + " in " +
                   shown + "; convert it");
}

/// Throws InputError where two outputs have one path.
void check_distinct_paths(const GenerateOptions& o) {
  const std::string* paths[] = {&o.save_path, &o.contact_sheet, &o.json};
  const char* names[] = {"--save-path", "--contact-sheet", "--json"};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (paths[i]->empty() || *paths[i] != *paths[j]) continue;
      throw InputError(std::string("[generate] ") + names[j] + " and " + names[i] +
                       " must differ: got '" + *paths[i] + "' for both");
    }
  }
}

}  // namespace

CLI::Validator whole_number() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool good = error == std::errc() && stop == end && text == std::to_string(value);
        return good ? "" : "must be a whole number below 2^63: got '" + text + "'";
      },
      "", "whole number");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) -> std::string { return text.empty() ? "must not be empty" : ""; }, "",
      "not empty");
}

void add_generate_options(CLI::App& command, GenerateOptions& o) {
  command
      .add_option("--model-path", o.model_path,
                  "Folder in diffusers' layout, or a hub name in the local Hugging Face cache "
                  "(default: the shipped model)")
      ->check(not_empty());
  add_image_options(command, o.settings);
  command
      .add_option("--prompt-file", o.prompt_file,
                  "A prompt per line, or JSON lines with settings per picture")
      ->check(not_empty());
  command.add_option("--dtype", o.dtype, "auto, fp32, bf16 or fp16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}));
  command.add_option("--device", o.device, "auto, cpu, cuda, cuda:N, npu or npu:N");
  command
      .add_option("--attn,--attention-backend", o.attention_backend,
                  "Attention backend of the transformer, or auto; `cachedit backends` lists them "
                  "(default: CACHE_DIT_ATTN_BACKEND, else native)")
      ->check(not_empty());
  o.cache.add_to(command);
  o.parallel.add_to(command);
  o.quantize.add_to(command);
  add_op_library_option(command, o.op_libraries);
  command
      .add_option("--threads", o.threads,
                  "CPU threads (default: one per core, shared out among the ranks of a machine)")
      ->check(whole_number());
  command
      .add_option("--save-path", o.save_path,
                  "File, or folder for generated names (default: the current folder)")
      ->check(not_empty());
  command.add_option("--format", o.format, "png, jpg or webp (default: by --save-path, else png)")
      ->check(CLI::IsMember({"png", "jpg", "jpeg", "webp"}));
  command
      .add_option("--output-type", o.output_type,
                  "image, or latent (packed latents as safetensors)")
      ->check(CLI::IsMember({"image", "latent"}));
  command.add_option("--contact-sheet", o.contact_sheet, "Also write all pictures as one sheet")
      ->check(not_empty());
  command.add_option("--json", o.json, "Write settings, timings and outputs to this file")
      ->check(not_empty());
  command.add_flag("--vae-tiling", o.vae_tiling, "Decode in tiles: less memory for large pictures");
  command.add_flag("--vae-slicing", o.vae_slicing, "Decode one picture of a batch after the other");
  command.add_flag("--quiet", o.quiet, "No progress and no summary on stderr");
}

void add_op_library_option(CLI::App& command, std::vector<std::string>& paths) {
  command
      .add_option(
          "--op-library", paths,
          "Shared library that registers operators, loaded first; may be given several times")
      ->check(not_empty())
      ->expected(1)
      ->take_all();
}

void check_generate_options(const GenerateOptions& o) {
  if (!o.has_prompt && o.prompt_file.empty()) {
    throw InputError("[generate] --prompt is missing; give it, or --prompt-file");
  }
  if (o.has_prompt && !o.prompt_file.empty()) {
    throw InputError("[generate] --prompt and --prompt-file exclude each other: give one of them");
  }
  if (o.output_type == "latent" && (!o.contact_sheet.empty() || !o.format.empty())) {
    throw InputError(
        "[generate] --output-type latent writes safetensors: leave out --format and "
        "--contact-sheet");
  }
  if (o.output_type == "latent" && o.cache.compare()) {
    throw InputError(
        "[generate] --compare-cache compares pictures: leave out --output-type latent");
  }
  if (!o.attention_backend.empty()) attention::check_backend_name(o.attention_backend);
  check_distinct_paths(o);
}

void check_image_settings(const std::vector<ImageSettings>& all) {
  for (const ImageSettings& s : all) {
    check_text(s.prompt, "prompt");
    if (s.negative_prompt) check_text(*s.negative_prompt, "negative prompt");
  }
  const auto any = [&](auto&& has) { return std::any_of(all.begin(), all.end(), has); };
  if (any([](const ImageSettings& s) { return s.strength.has_value(); }) &&
      !any([](const ImageSettings& s) { return s.image_path.has_value(); })) {
    throw InputError("[generate] --strength has no effect without --image-path; give both or none");
  }
}

}  // namespace cachedit::cli
