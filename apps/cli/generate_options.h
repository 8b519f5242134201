// What `cachedit generate` was asked to do.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache_options.h"
#include "parallel_options.h"
#include "quantize_options.h"

namespace cachedit::cli {

/// Settings of one picture (or batch); a prompt file may override them line by line.
struct ImageSettings {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  std::optional<double> true_cfg_scale;
  std::optional<double> guidance_scale;
  std::optional<int64_t> height;
  std::optional<int64_t> width;
  std::optional<int64_t> num_inference_steps;
  std::optional<int64_t> seed;  ///< -1: a random one for every prompt
  std::optional<int64_t> num_images_per_prompt;
  std::optional<int64_t> max_sequence_length;
  std::optional<std::string> image_path;
  std::optional<double> strength;
  std::vector<double> sigmas;
};

struct GenerateOptions {
  ImageSettings settings;
  bool has_prompt = false;  ///< an empty prompt is one, too
  std::string model_path;   ///< empty: the shipped model
  std::string prompt_file;
  std::string dtype = "auto";
  std::string device = "auto";
  std::string attention_backend;  ///< empty: CACHE_DIT_ATTN_BACKEND, else native
  CacheOptions cache;
  ParallelOptions parallel;
  QuantizeOptions quantize;
  std::vector<std::string> op_libraries;
  std::optional<int64_t> threads;
  std::string save_path;
  std::string format;  ///< empty: by save_path's extension, else png
  std::string output_type = "image";
  std::string contact_sheet;
  std::string json;
  bool vae_tiling = false;
  bool vae_slicing = false;
  bool quiet = false;
};

/// For options that name a file or a folder: an unset shell variable must not choose the default.
CLI::Validator not_empty();

/// CLI11 alone would read 010 as octal and replace what does not fit by the largest number.
CLI::Validator whole_number();

/// --op-library, once or several times.
void add_op_library_option(CLI::App& command, std::vector<std::string>& paths);

/// Registers every option on `command`.
void add_generate_options(CLI::App& command, GenerateOptions& options);

/// Throws InputError where options contradict each other.
void check_generate_options(const GenerateOptions& options);

/// The same for the pictures to make. Texts must be UTF-8 without zero bytes, since pictures and
/// reports carry them.
void check_image_settings(const std::vector<ImageSettings>& all);

}  // namespace cachedit::cli
