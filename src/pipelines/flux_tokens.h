// A rank's share of the tokens of a FLUX run: text, image and their rotary angles.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/flux/flux_transformer.h"
#include "parallel/sequence.h"

namespace cachedit::pipelines {

class FluxTokens {
 public:
  /// `group`: the ranks that hold the parts of the sequence; must outlive the object.
  FluxTokens(comm::Communicator& group, int64_t text, int64_t image)
      : text_(group, text), image_(group, image) {}

  /// What this rank's tokens need of the conditioning.
  models::FluxConditioning take(const models::FluxConditioning& whole) const;
  /// Packed latents [B, Ni, C] -> this rank's [B, Ni_r, C], and back on every rank.
  at::Tensor take_latents(const at::Tensor& whole) const;
  at::Tensor gather_latents(const at::Tensor& part) const { return image_.gather(part, 1); }
  /// Tokens of every rank, text and image.
  std::vector<int64_t> lengths() const { return parallel::joint_lengths({&text_, &image_}); }

 private:
  parallel::SequenceSplit text_;
  parallel::SequenceSplit image_;
};

}  // namespace cachedit::pipelines
