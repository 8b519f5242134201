// The ranks of MPI_COMM_WORLD as a Communicator, with what a test varies; everybody else calls
// mpi_world() of comm/mpi.h. Only in builds with MPI.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace cachedit::comm {

/// MPI counts bytes in an int. Larger messages travel in chunks of this size.
constexpr int64_t kMpiChunkBytes = int64_t{1} << 30;

/// As mpi_world(), with another chunk size, the same on every rank.
std::shared_ptr<Communicator> make_mpi_world(int64_t chunk_bytes);

}  // namespace cachedit::comm
