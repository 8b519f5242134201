// What a FLUX request means once checked against the checkpoint: every default filled in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cachedit/pipeline.h"

namespace cachedit::pipelines {

/// What the rules need to know of the checkpoint.
struct FluxLimits {
  int64_t vae_scale_factor = 8;
  int64_t sample_size = 1024;
  int64_t default_sequence_length = 512;
  bool guidance_embeds = false;
};

struct FluxPlan {
  std::vector<std::string> prompt, prompt_2, negative_prompt, negative_prompt_2;
  int64_t batch = 1;   ///< prompts (or rows of prompt_embeds)
  int64_t copies = 1;  ///< images per prompt
  bool true_cfg = false;
  int64_t height = 0, width = 0;            ///< pixels, multiples of what the model needs
  int64_t grid_height = 0, grid_width = 0;  ///< tokens
  int64_t max_sequence_length = 512;
  int64_t num_inference_steps = 28;
  std::vector<double> sigmas;  ///< 1 to 1/n when the request gave none

  int64_t images() const { return batch * copies; }
};

/// Throws InputError naming the field and its value. Warns about a size that had to be floored and
/// about settings that have no effect.
FluxPlan plan_flux_request(const GenerateRequest& request, const FluxLimits& limits);

}  // namespace cachedit::pipelines
