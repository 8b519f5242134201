// Shared libraries that register operators with LibTorch's dispatcher (FlashAttention-3's
// extension, torch_npu), loaded by path, without
// Python. load_op_library() is public; loading one again does nothing.
#pragma once

#include <string>

#include "cachedit/attention.h"

namespace cachedit::attention {

/// Loads each file of a colon-separated list.
void load_op_libraries(const std::string& list);

/// Those of CACHEDIT_OP_LIBRARIES, once per process; after a failure the next call fails again.
void load_environment_op_libraries();

}  // namespace cachedit::attention
