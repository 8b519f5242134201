// Cache statistics where two groups of ranks computed one guidance branch each.
#pragma once

#include "cachedit/pipeline.h"
#include "comm/communicator.h"

namespace cachedit::pipelines {

/// What each rank of `cfg` counted as its only branch becomes the conditional and the unconditional
/// branch of the result, the same on both.
void merge_guidance_branches(GenerateResult& result, comm::Communicator& cfg);

}  // namespace cachedit::pipelines
