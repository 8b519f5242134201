#include <unistd.h>

#include <algorithm>

#include "base/fail.h"
#include "cachedit/parallel.h"
#include "comm/collectives.h"
#include "comm/mpi.h"
#include "comm/process_group.h"

namespace cachedit {

World::World() : communicator_(std::make_shared<comm::SingleProcess>()) {}

World::World(std::shared_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

World World::mpi() { return World(comm::mpi_world()); }

World World::from_environment() { return comm::launched_ranks() > 1 ? mpi() : World(); }

World World::process_group(const std::string& name) { return World(comm::process_group(name)); }

int64_t World::rank() const { return communicator_->rank(); }

int64_t World::size() const { return communicator_->size(); }

int64_t World::local_size() const {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::vector<std::string> hosts = comm::all_gather_text(*communicator_, host);
  return std::count(hosts.begin(), hosts.end(), std::string(host));
}

void World::require_equal(const std::string& what, const std::string& text) const {
  comm::require_equal(*communicator_, what, text);
}

void World::announce_failure(const std::string& text) const noexcept {
  communicator_->announce_failure(text);
}

std::vector<std::string> World::failures() const {
  // Ranks that fail for the same reason do so within moments of each other.
  constexpr double kSeconds = 0.5;
  return communicator_->collect_failures(kSeconds);
}

void World::barrier() const { comm::barrier(*communicator_); }

}  // namespace cachedit
