#include "pipelines/flux_tokens.h"

#include <ATen/ops/cat.h>

namespace cachedit::pipelines {

models::FluxConditioning FluxTokens::take(const models::FluxConditioning& whole) const {
  if (text_.lengths().size() == 1) return whole;
  // Rows of the joint sequence: all text, then all of the image.
  const at::Tensor& freqs = whole.rotary.freqs;
  const at::Tensor text = text_.take(freqs.narrow(0, 0, text_.total()), 0);
  const at::Tensor image = image_.take(freqs.narrow(0, text_.total(), image_.total()), 0);
  return {.encoder = text_.take(whole.encoder, 1).contiguous(),
          .modulations = whole.modulations,
          .rotary = {at::cat({text, image}, 0)},
          .arena = whole.arena};
}

at::Tensor FluxTokens::take_latents(const at::Tensor& whole) const {
  return image_.take(whole, 1).contiguous();
}

}  // namespace cachedit::pipelines
