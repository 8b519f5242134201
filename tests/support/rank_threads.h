// Several ranks as threads of this process, for tests of what ranks do together.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/communicator.h"

namespace cachedit::test {

/// Runs work(communicator) on `ranks` threads that exchange through memory, each in inference mode
/// with one computing thread. A rank that throws ends the others' waits; the error of the first
/// that threw comes out of here. Waits of more than 30 seconds throw CommError.
void run_ranks(int64_t ranks, const std::function<void(comm::Communicator&)>& work);

}  // namespace cachedit::test
