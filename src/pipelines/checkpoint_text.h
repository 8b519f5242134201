// A checkpoint's components as text, for comparing those of several ranks.
#pragma once

#include <string>
#include <vector>

#include "io/weight_store.h"

namespace cachedit::pipelines {

/// One line per component: number of tensors and checksums of config.json, of all names, dtypes and
/// shapes, and of samples of every tensor's bytes (all of them would read the whole file).
std::string checkpoint_text(const std::vector<io::WeightStore>& components);

}  // namespace cachedit::pipelines
