#include "comm/mpi_peers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace cachedit::comm {
namespace {

/// A process that only waits, and how a rank would know it.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
    identity_ = own_identity();
    identity_.pid = pid_;
    identity_.start_time = started();
  }
  ~Child() {
    if (pid_ > 0) end();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const ProcessIdentity& identity() const { return identity_; }
  /// Ends it without asking for its exit code.
  void kill_only() const {
    kill(pid_, SIGKILL);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  void end() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  int64_t started() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string field;
    for (int i = 0; i < 22; ++i) file >> field;  // the test's name holds no space
    return std::stoll(field);
  }

  pid_t pid_;
  ProcessIdentity identity_;
};

TEST(ProcessIdentity, IsTheSameMachineForItself) {
  const ProcessIdentity own = own_identity();
  ASSERT_NE(own.machine[0], '\0') << "/proc says too little here";
  EXPECT_EQ(own.pid, getpid());
  EXPECT_GT(own.start_time, 0);
  EXPECT_TRUE(same_machine(own, own_identity()));
  EXPECT_FALSE(is_gone(own));
  ProcessIdentity elsewhere = own;
  elsewhere.machine[0] = elsewhere.machine[0] == 'x' ? 'y' : 'x';
  EXPECT_FALSE(same_machine(own, elsewhere));
}

TEST(ProcessIdentity, UnknownMachinesAreNotTheSame) {
  EXPECT_FALSE(same_machine(ProcessIdentity{}, ProcessIdentity{}));
}

TEST(ProcessIdentity, AKilledProcessIsGone) {
  Child child;
  EXPECT_FALSE(is_gone(child.identity()));
  child.kill_only();
  EXPECT_TRUE(is_gone(child.identity())) << "a zombie";
  child.end();
  EXPECT_TRUE(is_gone(child.identity())) << "forgotten by the kernel";
}

TEST(ProcessIdentity, ALaterProcessOfTheSameNumberIsAnother) {
  Child child;
  ProcessIdentity earlier = child.identity();
  --earlier.start_time;
  EXPECT_TRUE(is_gone(earlier));
}

}  // namespace
}  // namespace cachedit::comm
