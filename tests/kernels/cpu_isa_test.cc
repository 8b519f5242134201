#include "kernels/cpu_isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace cachedit::kernels {
namespace {

TEST(CpuIsa, NamesAreAsDocumented) {
  std::vector<std::string> names;
  for (const CpuIsa isa : kAllIsas) names.emplace_back(isa_name(isa));
  EXPECT_EQ(names, (std::vector<std::string>{"portable", "avx2", "avx2_vnni", "avx512",
                                             "avx512_vnni", "avx512_bf16"}));
}

TEST(CpuIsa, PortableRunsEverywhere) { EXPECT_TRUE(isa_supported(CpuIsa::kPortable)); }

TEST(CpuIsa, BestIsTheLastSupported) {
  EXPECT_TRUE(isa_supported(best_isa()));
  for (const CpuIsa isa : kAllIsas) {
    EXPECT_TRUE(!isa_supported(isa) || isa <= best_isa()) << isa_name(isa);
  }
}

TEST(CpuIsa, ALevelBringsTheLevelsThatItIncludes) {
  const auto needs = [](CpuIsa level, CpuIsa included) {
    if (isa_supported(level)) {
      EXPECT_TRUE(isa_supported(included)) << isa_name(level) << " without " << isa_name(included);
    }
  };
  needs(CpuIsa::kAvx2Vnni, CpuIsa::kAvx2);
  needs(CpuIsa::kAvx512, CpuIsa::kAvx2);
  needs(CpuIsa::kAvx512Vnni, CpuIsa::kAvx512);
  needs(CpuIsa::kAvx512Bf16, CpuIsa::kAvx512Vnni);
}

#if defined(__x86_64__) && defined(__GNUC__)
TEST(CpuIsa, AgreesWithTheCompilersOwnDetection) {
  // The build contains every x86 level, so only the CPU decides. (AVX-VNNI has no name here.)
  EXPECT_EQ(isa_supported(CpuIsa::kAvx2), __builtin_cpu_supports("avx2") &&
                                              __builtin_cpu_supports("fma") &&
                                              __builtin_cpu_supports("f16c"));
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  EXPECT_EQ(isa_supported(CpuIsa::kAvx512), avx512);
  EXPECT_EQ(isa_supported(CpuIsa::kAvx512Vnni), avx512 && __builtin_cpu_supports("avx512vnni"));
}
#endif

}  // namespace
}  // namespace cachedit::kernels
