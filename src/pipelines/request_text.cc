#include "pipelines/request_text.h"

#include <c10/util/StringUtil.h>

#include "pipelines/checksum.h"

namespace cachedit::pipelines {
namespace {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  const at::Tensor bytes = tensor.cpu().contiguous();
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), " checksum ",
                  checksum(bytes.const_data_ptr(), bytes.nbytes()));
}

std::string text_of(const std::optional<Image>& image) {
  if (!image) return "none";
  return c10::str(image->width, " x ", image->height, " checksum ",
                  checksum(image->pixels.data(), image->pixels.size()));
}

template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? c10::str(*value) : "default";
}

std::string text_of(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += "\n  " + text;
  return joined;
}

}  // namespace

std::string request_text(const GenerateRequest& r) {
  std::string sigmas;
  for (const double sigma : r.sigmas) sigmas += c10::str(" ", sigma);
  return c10::str("prompt:", text_of(r.prompt), "\nprompt_2:", text_of(r.prompt_2),
                  "\nnegative_prompt:", text_of(r.negative_prompt),
                  "\nnegative_prompt_2:", text_of(r.negative_prompt_2),
                  "\nprompt_embeds: ", text_of(r.prompt_embeds),
                  "\npooled_prompt_embeds: ", text_of(r.pooled_prompt_embeds),
                  "\nnegative_prompt_embeds: ", text_of(r.negative_prompt_embeds),
                  "\nnegative_pooled_prompt_embeds: ", text_of(r.negative_pooled_prompt_embeds),
                  "\nheight: ", text_of(r.height), "\nwidth: ", text_of(r.width),
                  "\nnum_inference_steps: ", text_of(r.num_inference_steps), "\nsigmas:", sigmas,
                  "\nguidance_scale: ", r.guidance_scale, "\ntrue_cfg_scale: ", r.true_cfg_scale,
                  "\nnum_images_per_prompt: ", r.num_images_per_prompt,
                  "\nmax_sequence_length: ", text_of(r.max_sequence_length),
                  "\nseed: ", text_of(r.seed), "\nlatents: ", text_of(r.latents),
                  "\nimage: ", text_of(r.image), "\nstrength: ", r.strength,
                  "\noutput_type: ", static_cast<int>(r.output_type),
                  "\nvae_tiling: ", r.vae_tiling, "\nvae_slicing: ", r.vae_slicing, "\n");
}

}  // namespace cachedit::pipelines
