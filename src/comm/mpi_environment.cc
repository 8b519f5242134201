#include "comm/mpi_environment.h"

#include <charconv>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/fail.h"
#include "comm/mpi.h"

namespace cachedit::comm {
namespace {

constexpr double kDefaultTimeout = 600;
constexpr double kLongestTimeout = 1e8;  // three years

/// The whole text as a number.
template <class Number>
bool parse(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

}  // namespace

int64_t launched_ranks(const Environment& variables) {
  // mpirun within a Slurm job passes on what Slurm said of mpirun's own processes, so it goes
  // first.
  for (const auto& [name, text] : std::initializer_list<std::pair<const char*, std::string>>{
           {"OMPI_COMM_WORLD_SIZE", variables.ompi_comm_world_size},
           {"PMI_SIZE", variables.pmi_size},
           {"SLURM_STEP_NUM_TASKS", variables.slurm_step_num_tasks}}) {
    if (text.empty()) continue;
    int64_t ranks = 0;
    if (!parse(text, ranks) || ranks < 1) {
      fail<ConfigError>(name, "must be the number of processes that the launcher started: got '",
                        text, "'; unset it to run alone");
    }
    return ranks;
  }
  return 1;
}

int64_t launched_ranks() { return launched_ranks(environment()); }

double comm_timeout(const Environment& variables) {
  const std::string& text = variables.comm_timeout;
  if (text.empty()) return kDefaultTimeout;
  double seconds = 0;
  if (!parse(text, seconds) || !(seconds > 0) || seconds > kLongestTimeout) {
    fail<ConfigError>("CACHEDIT_COMM_TIMEOUT", "must be seconds above 0: got '", text,
                      "'; unset it for the default, ", kDefaultTimeout);
  }
  return seconds;
}

}  // namespace cachedit::comm
