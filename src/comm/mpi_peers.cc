#include "comm/mpi_peers.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include "base/fail.h"

namespace cachedit::comm {
namespace {

struct ProcessState {
  char state = '?';
  int64_t start_time = 0;
};

/// From /proc/<pid>/stat: "pid (name) state ppid ...", where the name may hold anything; the start
/// time is the 22nd field. Nothing for a process that does not exist.
std::optional<ProcessState> state_of(int64_t pid) {
  std::ifstream file(c10::str("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState found;
  fields >> found.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> found.start_time;
  if (!fields) return std::nullopt;
  return found;
}

std::string link_target(const char* path) {
  char target[128];
  const ssize_t length = readlink(path, target, sizeof target);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

}  // namespace

ProcessIdentity own_identity() {
  ProcessIdentity own{.pid = getpid()};
  const std::optional<ProcessState> state = state_of(own.pid);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string table = link_target("/proc/self/ns/pid");
  char host[128] = {};
  const bool named = gethostname(host, sizeof host - 1) == 0;
  if (!state || boot.empty() || table.empty() || !named) return own;
  own.start_time = state->start_time;
  const std::string machine = c10::str(boot, " ", table, " ", host);
  std::strncpy(own.machine, machine.c_str(), sizeof own.machine - 1);
  return own;
}

bool same_machine(const ProcessIdentity& a, const ProcessIdentity& b) {
  return a.machine[0] != '\0' && std::strncmp(a.machine, b.machine, sizeof a.machine) == 0;
}

bool is_gone(const ProcessIdentity& process) {
  const std::optional<ProcessState> state = state_of(process.pid);
  // What cannot be read may have other reasons, such as too many open files.
  if (!state) return kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
  return state->state == 'Z' || state->state == 'X' || state->start_time != process.start_time;
}

}  // namespace cachedit::comm
