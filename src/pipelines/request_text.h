// A request as text, for comparing those of several ranks.
#pragma once

#include <string>

#include "cachedit/pipeline.h"

namespace cachedit::pipelines {

/// One line per field that changes the result; tensors and pictures by shape and checksum.
std::string request_text(const GenerateRequest& request);

}  // namespace cachedit::pipelines
