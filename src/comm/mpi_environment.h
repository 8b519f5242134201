// What the environment says of a run with several processes: how many a launcher started, and how
// long they wait for each other.
#pragma once

#include <cstdint>

#include "base/environment.h"

namespace cachedit::comm {

/// As launched_ranks() of comm/mpi.h. Throws ConfigError where a launcher's variable is no number.
int64_t launched_ranks(const Environment& variables);

/// Seconds that a rank waits for others without progress. Throws ConfigError where
/// CACHEDIT_COMM_TIMEOUT is not a number above 0.
double comm_timeout(const Environment& variables);

}  // namespace cachedit::comm
