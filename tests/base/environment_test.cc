#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace cachedit {
namespace {

/// Sets or clears a variable and puts the old value back.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    assign(value);
  }
  ~ScopedVariable() { assign(old_ ? old_->c_str() : nullptr); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void assign(const char* value) {
    value == nullptr ? unsetenv(name_) : setenv(name_, value, /*overwrite=*/1);
  }
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Environment, ReadsEveryVariableIntoItsOwnField) {
  const ScopedVariable level("CACHEDIT_LOG_LEVEL", "info");
  const ScopedVariable model("CACHEDIT_DEFAULT_MODEL", "/models/other");
  const ScopedVariable libraries("CACHEDIT_OP_LIBRARIES", "/a.so:/b.so");
  const ScopedVariable isa("CACHEDIT_CPU_ISA", "avx2");
  const ScopedVariable backend("CACHE_DIT_ATTN_BACKEND", "flash");
  const ScopedVariable checks("CACHE_DIT_ATTN_CHECKS", "1");
  const ScopedVariable hf_home("HF_HOME", "/hf");
  const ScopedVariable hub_cache("HF_HUB_CACHE", "/hub");
  const ScopedVariable xdg("XDG_CACHE_HOME", "/xdg");
  const ScopedVariable home("HOME", "/home/somebody");
  const ScopedVariable timeout("CACHEDIT_COMM_TIMEOUT", "30");
  const ScopedVariable ompi("OMPI_COMM_WORLD_SIZE", "2");
  const ScopedVariable pmi("PMI_SIZE", "3");
  const ScopedVariable slurm("SLURM_STEP_NUM_TASKS", "4");
  const Environment got = read_environment();
  EXPECT_EQ(got.log_level, "info");
  EXPECT_EQ(got.default_model, "/models/other");
  EXPECT_EQ(got.op_libraries, "/a.so:/b.so");
  EXPECT_EQ(got.cpu_isa, "avx2");
  EXPECT_EQ(got.attention_backend, "flash");
  EXPECT_EQ(got.attention_checks, "1");
  EXPECT_EQ(got.hf_home, "/hf");
  EXPECT_EQ(got.hf_hub_cache, "/hub");
  EXPECT_EQ(got.xdg_cache_home, "/xdg");
  EXPECT_EQ(got.home, "/home/somebody");
  EXPECT_EQ(got.comm_timeout, "30");
  EXPECT_EQ(got.ompi_comm_world_size, "2");
  EXPECT_EQ(got.pmi_size, "3");
  EXPECT_EQ(got.slurm_step_num_tasks, "4");
}

TEST(Environment, AVariableThatIsNotSetIsEmpty) {
  const ScopedVariable model("CACHEDIT_DEFAULT_MODEL", nullptr);
  const ScopedVariable hf_home("HF_HOME", "");
  EXPECT_EQ(read_environment().default_model, "");
  EXPECT_EQ(read_environment().hf_home, "");
}

TEST(Environment, IsReadOncePerProcess) {
  const std::string before = environment().hf_home;
  const ScopedVariable changed("HF_HOME", "/somewhere/that/was/not/there/before");
  EXPECT_EQ(environment().hf_home, before);
  EXPECT_EQ(&environment(), &environment());
}

}  // namespace
}  // namespace cachedit
