// Stands in for mpi_world.cc in a build without MPI.
#include "base/fail.h"
#include "comm/mpi.h"

namespace cachedit::comm {

bool built_with_mpi() { return false; }

std::shared_ptr<Communicator> mpi_world() {
  fail<UnsupportedError>("mpi", "this build has no MPI: got ", launched_ranks(),
                         " processes of a launcher; install Open MPI's development package and "
                         "configure with -DCACHEDIT_MPI=ON, or run one process");
}

}  // namespace cachedit::comm
