// Ranks that MPI started together. Compiled with or without MPI (CMake option CACHEDIT_MPI).
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace cachedit::comm {

/// Whether this build can talk MPI.
bool built_with_mpi();

/// How many processes a launcher (mpirun, srun with PMIx or PMI2) started this one among, from the
/// environment; 1 without one.
int64_t launched_ranks();

/// All ranks of MPI_COMM_WORLD. Initializes MPI at the first call; it is finalized at the end of a
/// process in which no rank failed. A process that is done while another rank still fails says so
/// and exits with 1. A wait ends with CommError, naming the rank and the operation,
/// when a rank announced its failure, when a rank of this machine is gone, or after
/// CACHEDIT_COMM_TIMEOUT seconds (default 600) without progress. Throws UnsupportedError without
/// MPI.
std::shared_ptr<Communicator> mpi_world();

}  // namespace cachedit::comm
