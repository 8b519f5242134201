// What the four ffpa backends have in common: large heads, masks, alignment at the last rows.
#pragma once

#include <string>

#include "attention/backend.h"
#include "kernels/attention.h"

namespace cachedit::attention {

struct FfpaVariant {
  std::string name;
  std::string description;
  int listing = 0;
  kernels::AttentionScheme scheme = kernels::AttentionScheme::kExact;
  std::vector<int> compute_capabilities;  ///< that upstream's CUDA kernels are made for
  std::string cuda_note;
};

Backend make_ffpa_variant(const FfpaVariant& variant);

/// The limits of upstream's fp8 kernels on CUDA.
std::string ffpa_fp8_cuda_note();

}  // namespace cachedit::attention
