#include "base/cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cachedit/error.h"
#include "support/expect_error.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CpuIsa, NamesAreChecked) {
  EXPECT_EQ(parse_cpu_isa(""), kernels::best_isa());
  EXPECT_EQ(parse_cpu_isa("portable"), kernels::CpuIsa::kPortable);
  test::expect_error<ConfigError>(
      [] { parse_cpu_isa("sse9"); },
      AllOf(HasSubstr("CACHEDIT_CPU_ISA"), HasSubstr("'sse9'"), HasSubstr("use portable")));
  for (const kernels::CpuIsa isa : kernels::kAllIsas) {
    if (kernels::isa_supported(isa)) {
      EXPECT_EQ(parse_cpu_isa(kernels::isa_name(isa)), isa);
    } else {
      EXPECT_THROW(parse_cpu_isa(kernels::isa_name(isa)), ConfigError);
    }
  }
}

TEST(CpuThreads, CallsEveryTaskOnce) {
  for (const int threads : {1, 3, 8}) {
    kernels::Parallel parallel = cpu_threads();
    EXPECT_GE(parallel.threads, 1);
    parallel.context = reinterpret_cast<void*>(static_cast<intptr_t>(threads));
    std::vector<int> calls(static_cast<size_t>(threads), 0);
    parallel.run(
        parallel.context, [](void* argument, int i) { ++static_cast<int*>(argument)[i]; },
        calls.data());
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(threads), 1));
  }
}

}  // namespace
}  // namespace cachedit
