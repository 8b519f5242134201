// A program for mpirun: checks what the collectives promise over real MPI, and fails in the ways
// that ranks fail. tests/python/test_mpi.py starts it.
//
//   cachedit_mpi_ranks COMMAND [CHUNK_BYTES] [MARKER]
//
// Results go to stdout, errors to stderr as "rank R: text"; the exit code is 1 where a rank failed.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "base/fail.h"
#include "comm/collective_checks.h"
#include "comm/collectives.h"
#include "comm/mpi.h"
#include "comm/mpi_world.h"

namespace cachedit::test {
namespace {

using comm::Communicator;

/// The rank that fails where one has to.
constexpr int64_t kBad = 1;
/// How long a failing rank waits for what the others have to say.
constexpr double kLastWords = 2;

void say(const Communicator& world, const std::string& text) {
  const std::string line = c10::str("rank ", world.rank(), ": ", text, "\n");
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

void check_everything(Communicator& world) {
  int passed = 0;
  for (const CollectiveCheck& check : collective_checks()) {
    try {
      check.run(world);
    } catch (const std::exception& error) {
      throw std::runtime_error(check.name + ": " + error.what());
    }
    ++passed;
  }
  say(world, c10::str(passed, " checks passed"));
}

/// From rank 0 to the last one: more bytes than an int can count.
void send_more_than_2_gib(Communicator& world) {
  const int64_t last = world.size() - 1, bytes = (int64_t{11} << 30) / 5;
  const at::Tensor tensor = at::empty({bytes}, at::kByte);
  auto* data = tensor.mutable_data_ptr<uint8_t>();
  const auto expected = [](int64_t i) { return static_cast<uint8_t>((i * 2654435761) >> 24); };
  if (world.rank() == 0) {
    for (int64_t i = 0; i < bytes; ++i) data[i] = expected(i);
    world.exchange({{last, tensor}}, {}, "large").wait();
  } else if (world.rank() == last) {
    std::memset(data, 0, static_cast<size_t>(bytes));
    world.exchange({}, {{0, tensor}}, "large").wait();
    for (int64_t i = 0; i < bytes; ++i) {
      require(data[i] == expected(i), "byte ", i, ": got ", static_cast<int>(data[i]));
    }
  }
  say(world, c10::str("sent ", world.traffic().bytes_sent, " bytes"));
}

/// 4000 bytes each way.
void greet(Communicator& world) {
  const at::Tensor mine = at::zeros({1000}, at::kFloat), got = at::empty_like(mine);
  comm::rotate(world, mine, got).wait();
}

/// 64 MB each way, to see on which wire they go.
void send_64_mb(Communicator& world) {
  const at::Tensor mine = at::zeros({16'000'000}, at::kFloat), got = at::empty_like(mine);
  comm::rotate(world, mine, got).wait();
  say(world, c10::str("sent ", world.traffic().bytes_sent, " bytes"));
}

/// Steps that all ranks do together until one fails in the third.
void steps(Communicator& world, const std::function<void()>& misfortune) {
  at::Tensor tensor = at::zeros({100000}, at::kFloat);
  for (int step = 0; step < 1000; ++step) {
    if (step == 2 && world.rank() == kBad) misfortune();
    comm::all_reduce_sum(world, tensor);
  }
}

void be_killed(Communicator& world) {
  steps(world, [] { kill(getpid(), SIGKILL); });
}

void crash(Communicator& world) {
  steps(world, [] {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  });
}

void throw_error(Communicator& world) {
  steps(world, [] { fail<InputError>("test", "the width must be even: got 7"); });
}

void hang(Communicator& world) {
  steps(world, [] {
    while (true) pause();
  });
}

/// Ends as if all were well, long before the others.
void end_early(Communicator& world) {
  at::Tensor tensor = at::zeros({10}, at::kFloat);
  comm::all_reduce_sum(world, tensor);
  if (world.rank() != kBad) comm::all_reduce_sum(world, tensor);
}

/// Everybody is done, and one fails at the very end.
void fail_at_the_end(Communicator& world) {
  comm::barrier(world);
  if (world.rank() == kBad) fail<IoError>("test", "cannot write");
}

void send_too_little(Communicator& world) {
  const at::Tensor got = at::empty({1000}, at::kFloat);
  comm::rotate(world, at::zeros({world.rank() == kBad ? 999 : 1000}, at::kFloat), got).wait();
}

void send_too_much(Communicator& world) {
  const at::Tensor got = at::empty({1000}, at::kFloat);
  comm::rotate(world, at::zeros({world.rank() == kBad ? 1001 : 1000}, at::kFloat), got).wait();
}

/// An exception passes by an operation that is under way; MPI may still write into its tensors.
void abandon(Communicator& world) {
  const at::Tensor mine = at::zeros({1'000'000}, at::kFloat);
  if (world.rank() == kBad) fail<InputError>("test", "gave up");
  {
    const at::Tensor got = at::empty_like(mine);
    comm::Pending dropped = comm::rotate(world, mine, got);
  }
  std::vector<at::Tensor> elsewhere;  // would take the place of tensors that were freed
  for (int i = 0; i < 8; ++i) elsewhere.push_back(at::zeros_like(mine));
  world.collect_failures(kLastWords);
  at::Tensor sum = at::zeros({1}, at::kFloat);
  comm::all_reduce_sum(world, sum);  // refused: the others are out of step
}

const std::map<std::string, void (*)(Communicator&)>& commands() {
  static const std::map<std::string, void (*)(Communicator&)> all = {
      {"checks", check_everything},
      {"large", send_more_than_2_gib},
      {"wire", send_64_mb},
      {"killed", be_killed},
      {"crash", crash},
      {"throw", throw_error},
      {"hang", hang},
      {"end_early", end_early},
      {"late", fail_at_the_end},
      {"too_little", send_too_little},
      {"too_much", send_too_much},
      {"abandon", abandon},
      {"greet", greet}};
  return all;
}

/// As a program should end: tells the others, and gives them the time to tell.
int give_up(Communicator& world, const std::string& text) {
  std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(world.rank()), text.c_str());
  world.announce_failure(text);
  const std::vector<std::string> others = world.collect_failures(kLastWords);
  if (world.rank() != 0) return 1;
  for (size_t r = 0; r < others.size(); ++r) {
    if (others[r].empty()) continue;
    std::fprintf(stderr, "rank 0 heard from rank %d: %s\n", static_cast<int>(r), others[r].c_str());
  }
  return 1;
}

int run(const std::string& command, int64_t chunk_bytes) {
  const std::shared_ptr<Communicator> world = comm::make_mpi_world(chunk_bytes);
  try {
    commands().at(command)(*world);
    return 0;
  } catch (const std::exception& error) {
    return give_up(*world, error.what());
  }
}

}  // namespace
}  // namespace cachedit::test

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (cachedit::test::commands().count(command) == 0) {
    std::fprintf(stderr, "cachedit_mpi_ranks: unknown command '%s'\n", command.c_str());
    return 2;
  }
  int64_t chunk_bytes = cachedit::comm::kMpiChunkBytes;
  if (argc > 2) std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), chunk_bytes);
  // mpirun sends it to all ranks once one has died. The command line, too, ends by itself then.
  signal(SIGTERM, [](int) {});
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  try {
    return cachedit::test::run(command, chunk_bytes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
