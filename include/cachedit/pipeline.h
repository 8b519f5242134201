// Loading a checkpoint and generating pictures from it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/cache_stats.h"
#include "cachedit/export.h"
#include "cachedit/image.h"
#include "cachedit/parallel.h"
#include "cachedit/quantize.h"
#include "cachedit/step_profile.h"

namespace cachedit {

struct LoadOptions {
  /// "auto" (as stored; float16 becomes bfloat16 on a CPU, where float16 GEMM is slow), "fp32",
  /// "bf16" or "fp16".
  std::string dtype = "auto";
  /// "auto" (CUDA where the linked LibTorch has it, else the CPU), "cpu", "cuda", "cuda:N", "npu"
  /// or "npu:N" (with torch_npu's library loaded).
  std::string device = "auto";
  /// The ranks that generate together, and how they share the work. A layout may be chosen later as
  /// well, by enable_cache(); chosen here, each rank reads its share of the weights only.
  World world;
  ParallelismConfig parallelism_config;
  /// Layers are quantized one by one as they load, so that the whole weights are never in memory.
  /// Not given: as the checkpoint has them.
  std::optional<QuantizeConfig> quantize_config;
  /// Given: the transformer's layers add up their times in it.
  std::shared_ptr<StepProfile> profile;
};

enum class OutputType { kImage, kLatent };

/// What a progress callback is told after each denoising step.
struct StepProgress {
  int64_t step = 0;       ///< steps done so far, from 1
  int64_t num_steps = 0;  ///< steps in all
  double seconds = 0;     ///< duration of this step
};

/// One call of Pipeline::generate. Fields left out take the checkpoint's or diffusers' defaults.
struct GenerateRequest {
  /// One picture (times num_images_per_prompt) a prompt, UTF-8.
  std::vector<std::string> prompt;
  /// For the second text encoder; empty: same as `prompt`.
  std::vector<std::string> prompt_2;
  /// Used when true_cfg_scale > 1; one, or one a prompt.
  std::vector<std::string> negative_prompt;
  std::vector<std::string> negative_prompt_2;

  /// Embeddings in place of prompts: [B, sequence, joint_attention_dim] and [B, pooled_dim].
  at::Tensor prompt_embeds;
  at::Tensor pooled_prompt_embeds;
  at::Tensor negative_prompt_embeds;
  at::Tensor negative_pooled_prompt_embeds;

  /// Pixels; floored to the multiple that the model needs, with a warning. Default: VAE
  /// sample_size, or, image to image, the size of `image`.
  std::optional<int64_t> height;
  std::optional<int64_t> width;
  /// Denoising steps, at least 1. Default 28, or the number of `sigmas`.
  std::optional<int64_t> num_inference_steps;
  /// Custom noise levels in (0, 1], decreasing, without the final 0; empty: evenly spaced.
  std::vector<double> sigmas;
  /// Embedded guidance (guidance-distilled models only).
  double guidance_scale = 3.5;
  /// Classifier-free guidance with a second, negative forward pass; off at 1.
  double true_cfg_scale = 1.0;
  int64_t num_images_per_prompt = 1;
  /// T5 tokens, at most 512. Default: tokenizer_2's model_max_length, at most 512.
  std::optional<int64_t> max_sequence_length;
  /// Latents equal those of torch.Generator("cpu").manual_seed(seed). Default: a random seed,
  /// which the result reports.
  std::optional<uint64_t> seed;
  /// Packed initial noise [B, tokens, channels] in place of the seed's (text to image).
  at::Tensor latents;

  /// Image to image: start from this picture, noised by `strength` in (0, 1].
  std::optional<Image> image;
  double strength = 0.6;

  OutputType output_type = OutputType::kImage;
  bool vae_tiling = false;
  bool vae_slicing = false;

  /// Called after every step, on the calling thread; return false to stop (generate then throws
  /// Cancelled, on every rank if there are several).
  std::function<bool(const StepProgress&)> on_step;
};

struct StageSeconds {
  double text = 0;
  double denoise = 0;
  double decode = 0;
  double total = 0;
};

/// What one guidance branch of one context did in a denoising step.
struct CacheStep {
  bool cached = false;  ///< something was reused
  /// Of the decision, with several (DBPrune) their mean; none: nothing was measured.
  std::optional<double> diff;
};

/// One entry per denoising step, over forced refreshes.
struct CacheTrace {
  std::vector<CacheStep> conditional;
  std::vector<CacheStep> unconditional;  ///< nothing cached without separate CFG
};

/// What this rank exchanged with others while denoising.
struct ParallelStats {
  std::string layout;  ///< "ulysses 2 x tp 2"
  int64_t ranks = 1;
  int64_t bytes_sent = 0;
  int64_t messages_sent = 0;
  double seconds = 0;  ///< in exchanges, waiting for other ranks included
};

struct GenerateResult {
  /// One per prompt and image, prompt-major; empty when the output type is kLatent, and on ranks
  /// other than 0.
  std::vector<Image> images;
  /// Packed final latents [B, tokens, channels]; defined when the output type is kLatent.
  at::Tensor latents;
  uint64_t seed = 0;
  int64_t height = 0;  ///< pixels, after flooring
  int64_t width = 0;
  int64_t num_inference_steps = 0;  ///< steps that ran (image to image runs fewer)
  int64_t max_sequence_length = 0;
  bool embeds_guidance = false;  ///< whether the model read guidance_scale
  /// The backend that computed the transformer's attention; for "auto" those that it took, in the
  /// order of their names ("ffpa, flash").
  std::string attention_backend;
  StageSeconds seconds;
  std::vector<double> step_seconds;
  /// One per block list (FLUX: one for both lists, unless they decide apart); empty without
  /// caching. summary() in enable_cache.h shows it.
  std::vector<CacheStats> cache;
  std::vector<CacheTrace> cache_traces;  ///< one per entry of `cache`
  ParallelStats parallel;
};

struct EnableCacheOptions;

/// Who chose an attention backend; the first that did is obeyed.
enum class AttentionSource { kExplicit, kConfig };

/// A loaded checkpoint. generate() keeps no state between calls; one call at a time per object.
class CACHEDIT_API Pipeline {
 public:
  virtual ~Pipeline() = default;

  /// Throws InputError (a field of the request), Cancelled, or whatever the parts throw.
  virtual GenerateResult generate(const GenerateRequest& request) const = 0;

  /// diffusers' class name, e.g. "FluxPipeline".
  virtual std::string class_name() const = 0;
  /// The transformer's dtype ("fp32", "bf16", "fp16") and device ("cpu", "cuda:0").
  virtual std::string dtype() const = 0;
  virtual std::string device() const = 0;

  /// What enable_cache.h's functions do; use those.
  virtual void choose_attention(const std::string& name, AttentionSource source) = 0;
  virtual std::string attention_backend() const = 0;
  virtual void enable_caching(const EnableCacheOptions& options) = 0;
  virtual void disable_caching() = 0;
  virtual std::string caching() const = 0;

  /// The ranks that it was loaded with, and the layout chosen last.
  virtual const World& world() const = 0;
  virtual const ParallelismConfig& parallelism() const = 0;
  /// What quantization did to each component, this rank's share of it.
  virtual std::vector<ComponentQuantization> quantization() const = 0;
  /// Bytes of the transformer's weights that this rank holds.
  virtual int64_t transformer_bytes() const = 0;
};

/// Loads a folder in diffusers' layout, or a hub name ("org/name") that the local Hugging Face
/// cache holds. Weights are memory-mapped; the transformer's linear layers are packed for the
/// kernels layer by layer, the rest is not copied where it is on a CPU and in its stored dtype.
/// Throws IoError, ConfigError, WeightError or UnsupportedError, naming the file and the item;
/// ConfigError also for an unknown name in CACHE_DIT_ATTN_BACKEND.
CACHEDIT_API std::unique_ptr<Pipeline> load_pipeline(const std::string& model,
                                                     const LoadOptions& options = {});

/// CPU threads of every computation in this process from now on. Throws InputError outside 1..4096.
CACHEDIT_API void set_num_threads(int64_t threads);

/// The model that ships with cachedit: beside the installed library, or in the source tree.
/// Throws IoError if it is in neither place.
CACHEDIT_API std::filesystem::path default_model_path();

}  // namespace cachedit
