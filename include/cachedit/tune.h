// Finding the caching configuration for a model, a number of steps and a wanted quality, on the
// user's own prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachedit/enable_cache.h"
#include "cachedit/export.h"
#include "cachedit/pipeline.h"

namespace cachedit {

/// One configuration, measured against the uncached pictures of the same prompts and seeds.
struct TuneTrial {
  std::string name;  ///< as strify() writes it
  EnableCacheOptions options;
  double speedup = 0;  ///< denoising time uncached / cached
  double psnr = 0;     ///< mean over the pictures, dB
  double lowest_psnr = 0;
  int64_t computed_steps = 0;
  int64_t num_inference_steps = 0;
  bool meets_target = false;  ///< mean PSNR
  bool on_frontier = false;   ///< no other trial is both faster and better
};

struct TuneOptions {
  /// At least one; with four or more, every fourth judges and the others fit the linear
  /// calibrator, which else judges on what it was fitted to (a warning says so).
  std::vector<std::string> prompts;
  double target_psnr = 30;
  /// Configurations that are tried, at least 1.
  int64_t max_runs = 40;
  std::optional<int64_t> num_inference_steps;
  std::optional<int64_t> height;
  std::optional<int64_t> width;
  std::optional<int64_t> max_sequence_length;
  double guidance_scale = 3.5;
  double true_cfg_scale = 1.0;
  uint64_t seed = 0;
  std::function<void(const TuneTrial&)> on_trial;
};

struct TuneResult {
  std::vector<TuneTrial> trials;  ///< in the order in which they ran
  std::optional<size_t> best;     ///< the fastest that meets the target
  double uncached_seconds = 0;    ///< denoising of the judging prompts
  int64_t judging_prompts = 0;
  double target_psnr = 0;
};

/// Tries static masks with the linear calibrator, whose weights it fits in closed form, dynamic
/// DBCache with and without TaylorSeer over thresholds, and changes of the best of these (warm-up,
/// limits, block counts, calibrators); keeps to max_runs. The pipeline's own
/// caching is off afterwards. Weights are written into `folder`, one file per linear trial. Throws
/// InputError naming the field, UnsupportedError where the pipeline cannot cache.
CACHEDIT_API TuneResult tune(Pipeline& pipeline, const TuneOptions& options,
                             const std::filesystem::path& folder);

/// Writes the best trial as a file for load_configs() (cache-dit reads it, too), and the linear
/// weights beside it as <stem>.linear.json. Throws InputError where no trial meets the target.
CACHEDIT_API void write_best(const TuneResult& result, const std::filesystem::path& yaml);

/// The trials as an SVG plot of speed-up over PSNR, with the frontier as a line.
CACHEDIT_API std::string frontier_svg(const TuneResult& result);

}  // namespace cachedit
