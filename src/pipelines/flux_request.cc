#include "pipelines/flux_request.h"

#include <cmath>

#include "base/fail.h"
#include "base/log.h"

namespace cachedit::pipelines {
namespace {

constexpr const char* kWhere = "generate";
constexpr int64_t kMaxSide = 16384;
constexpr int64_t kMaxSteps = 10000;
constexpr int64_t kMaxImages = 1024;

/// One text for all prompts, or one for each.
std::vector<std::string> per_prompt(const std::vector<std::string>& texts, size_t prompts,
                                    const char* field) {
  if (texts.size() == prompts) return texts;
  if (texts.size() == 1) return std::vector<std::string>(prompts, texts[0]);
  fail<InputError>(kWhere, field, " must hold one text, or one for each of the ", prompts,
                   " prompts: got ", texts.size());
}

void plan_prompts(const GenerateRequest& r, FluxPlan& plan) {
  if (!r.prompt.empty() && r.prompt_embeds.defined()) {
    fail<InputError>(kWhere, "prompt and prompt_embeds exclude each other: give one of them");
  }
  if (r.prompt_embeds.defined() != r.pooled_prompt_embeds.defined()) {
    fail<InputError>(kWhere,
                     "prompt_embeds and pooled_prompt_embeds belong together: got only one of "
                     "them; give both, from the same prompts");
  }
  if (!r.prompt_embeds.defined()) {
    if (r.prompt.empty()) fail<InputError>(kWhere, "prompt is missing: give one, or prompt_embeds");
    plan.prompt = r.prompt;
    plan.prompt_2 =
        r.prompt_2.empty() ? r.prompt : per_prompt(r.prompt_2, r.prompt.size(), "prompt_2");
    plan.batch = static_cast<int64_t>(r.prompt.size());
    return;
  }
  if (!r.prompt_2.empty()) {
    fail<InputError>(kWhere, "prompt_2 and prompt_embeds exclude each other: give one of them");
  }
  if (r.prompt_embeds.dim() != 3) {
    fail<InputError>(kWhere, "prompt_embeds must be [B, sequence, width]: got ",
                     r.prompt_embeds.sizes());
  }
  plan.batch = r.prompt_embeds.size(0);
}

void check_negative_embeds(const GenerateRequest& r) {
  const at::Tensor& negative = r.negative_prompt_embeds;
  if (negative.defined() != r.negative_pooled_prompt_embeds.defined()) {
    fail<InputError>(kWhere,
                     "negative_prompt_embeds and negative_pooled_prompt_embeds belong together: "
                     "got only one of them; give both, from the same prompts");
  }
  if (negative.defined() && !(r.negative_prompt.empty() && r.negative_prompt_2.empty())) {
    fail<InputError>(kWhere,
                     "negative prompts and negative_prompt_embeds exclude each other: give one of "
                     "them");
  }
}

void plan_negative(const GenerateRequest& r, FluxPlan& plan) {
  check_negative_embeds(r);
  if (!std::isfinite(r.true_cfg_scale) || r.true_cfg_scale < 0) {
    fail<InputError>(kWhere, "true_cfg_scale must be finite and at least 0: got ",
                     r.true_cfg_scale);
  }
  const at::Tensor& negative = r.negative_prompt_embeds;
  const bool given = !r.negative_prompt.empty() || negative.defined();
  plan.true_cfg = r.true_cfg_scale > 1 && given;
  if (given && !plan.true_cfg) {
    log_warning(c10::str("[generate] the negative prompt has no effect at true_cfg_scale ",
                         r.true_cfg_scale, "; use a value above 1"));
  } else if (r.true_cfg_scale > 1 && !given) {
    log_warning(c10::str("[generate] true_cfg_scale ", r.true_cfg_scale,
                         " has no effect without a negative prompt (an empty one counts)"));
  }
  if (!plan.true_cfg) return;
  if (negative.defined()) {
    const at::Tensor& positive = r.prompt_embeds;
    if (positive.defined() ? positive.sizes() != negative.sizes()
                           : negative.dim() != 3 || negative.size(0) != plan.batch) {
      fail<InputError>(kWhere, "prompt_embeds and negative_prompt_embeds must have one shape: got ",
                       positive.defined() ? positive.sizes() : at::IntArrayRef(plan.batch), " and ",
                       negative.sizes());
    }
    return;
  }
  const auto prompts = static_cast<size_t>(plan.batch);
  plan.negative_prompt = per_prompt(r.negative_prompt, prompts, "negative_prompt");
  plan.negative_prompt_2 = r.negative_prompt_2.empty()
                               ? plan.negative_prompt
                               : per_prompt(r.negative_prompt_2, prompts, "negative_prompt_2");
}

int64_t floor_side(const char* field, int64_t value, int64_t multiple) {
  if (value < 1 || value > kMaxSide) {
    fail<InputError>(kWhere, field, " must lie in ", multiple, "..", kMaxSide, ": got ", value);
  }
  const int64_t floored = value / multiple * multiple;
  if (floored == 0) {
    fail<InputError>(kWhere, field, " must be at least ", multiple, " (one token): got ", value);
  }
  return floored;
}

void plan_size(const GenerateRequest& r, const FluxLimits& limits, FluxPlan& plan) {
  const int64_t height = r.height.value_or(r.image ? r.image->height : limits.sample_size);
  const int64_t width = r.width.value_or(r.image ? r.image->width : limits.sample_size);
  const int64_t multiple = limits.vae_scale_factor * 2;
  plan.height = floor_side("height", height, multiple);
  plan.width = floor_side("width", width, multiple);
  plan.grid_height = plan.height / multiple;
  plan.grid_width = plan.width / multiple;
  if (plan.height != height || plan.width != width) {
    log_warning(c10::str("[generate] sizes must be multiples of ", multiple, ": ", width, " x ",
                         height, " (width x height) becomes ", plan.width, " x ", plan.height));
  }
}

void plan_steps(const GenerateRequest& r, FluxPlan& plan) {
  const auto given = static_cast<int64_t>(r.sigmas.size());
  const int64_t steps = r.num_inference_steps.value_or(given > 0 ? given : 28);
  if (steps < 1 || steps > kMaxSteps) {
    fail<InputError>(kWhere, "num_inference_steps must lie in 1..", kMaxSteps, ": got ", steps);
  }
  if (given > 0 && steps != given) {
    fail<InputError>(kWhere, "num_inference_steps must equal the number of sigmas: got ", steps,
                     " and ", given, "; leave num_inference_steps out");
  }
  double previous = 1;
  for (const double sigma : r.sigmas) {
    if (!(sigma > 0 && sigma <= previous)) {
      fail<InputError>(kWhere, "sigmas must lie in (0, 1] and not increase: got ", sigma, " after ",
                       previous);
    }
    previous = sigma;
  }
  plan.num_inference_steps = steps;
  plan.sigmas = r.sigmas;
  if (given > 0) return;
  // numpy's linspace(1, 1/n, n): start + i * step, the last value set exactly.
  const double last = 1.0 / static_cast<double>(steps);
  const double step = steps > 1 ? (last - 1.0) / static_cast<double>(steps - 1) : 0;
  for (int64_t i = 0; i < steps; ++i) {
    plan.sigmas.push_back(static_cast<double>(i) * step + 1.0);
  }
  if (steps > 1) plan.sigmas.back() = last;
}

void check_rest(const GenerateRequest& r, const FluxLimits& limits, FluxPlan& plan) {
  if (r.num_images_per_prompt < 1 || plan.batch < 1 ||
      plan.batch * r.num_images_per_prompt > kMaxImages) {
    fail<InputError>(kWhere, "prompts times num_images_per_prompt must lie in 1..", kMaxImages,
                     ": got ", plan.batch, " and ", r.num_images_per_prompt);
  }
  plan.copies = r.num_images_per_prompt;
  plan.max_sequence_length = r.max_sequence_length.value_or(limits.default_sequence_length);
  if (plan.max_sequence_length < 1 || plan.max_sequence_length > 512) {
    fail<InputError>(kWhere, "max_sequence_length must lie in 1..512: got ",
                     plan.max_sequence_length);
  }
  if (!std::isfinite(r.guidance_scale) || r.guidance_scale < 0) {
    fail<InputError>(kWhere, "guidance_scale must be finite and at least 0: got ",
                     r.guidance_scale);
  }
  // 0 asks for no guidance, which is what such a model does.
  const double unset = GenerateRequest().guidance_scale;
  if (!limits.guidance_embeds && r.guidance_scale != unset && r.guidance_scale != 0) {
    log_warning(c10::str("[generate] guidance_scale ", r.guidance_scale,
                         " has no effect: this model embeds no guidance; use true_cfg_scale with a "
                         "negative prompt"));
  }
  if (r.image && !(r.strength > 0 && r.strength <= 1)) {
    fail<InputError>(kWhere, "strength must lie in (0, 1]: got ", r.strength);
  }
  if (r.image && r.latents.defined()) {
    fail<InputError>(kWhere, "image and latents exclude each other: give one of them");
  }
}

}  // namespace

FluxPlan plan_flux_request(const GenerateRequest& request, const FluxLimits& limits) {
  FluxPlan plan;
  plan_prompts(request, plan);
  plan_negative(request, plan);
  plan_size(request, limits, plan);
  plan_steps(request, plan);
  check_rest(request, limits, plan);
  return plan;
}

}  // namespace cachedit::pipelines
