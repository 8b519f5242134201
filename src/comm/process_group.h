// Ranks of a c10d process group that somebody else made: NCCL's for CUDA devices, Gloo's from
// Python.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace cachedit::comm {

/// The group that c10d has registered under `name` (torch.distributed's group_name). Throws
/// InputError for an unknown one.
std::shared_ptr<Communicator> process_group(const std::string& name);

}  // namespace cachedit::comm
