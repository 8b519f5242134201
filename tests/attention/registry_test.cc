#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<const Backend*>& backends) {
  std::vector<std::string> names;
  for (const Backend* backend : backends) names.push_back(backend->name);
  return names;
}

TEST(Registry, HasTheTwelveBackendsInTheirOrder) {
  std::vector<std::string> names;
  for (const Backend& backend : builtin_registry().backends()) names.push_back(backend.name);
  ASSERT_GE(names.size(), 12u);
  names.resize(12);  // further ones come after
  EXPECT_THAT(names, ElementsAre("native", "_sdpa_cudnn", "_native_cudnn", "flash", "_flash_3",
                                 "sage", "ffpa", "ffpa_fp8", "ffpa_fp8_per_block", "ffpa_fp4",
                                 "_native_npu", "_npu_fia"));
}

TEST(Registry, EveryFileOfBackendsIsIn) {
  int64_t files = 0;
  const auto folder = test::source_dir() / "src" / "attention" / "backends";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.path().extension() == ".cc";
  }
  EXPECT_EQ(static_cast<int64_t>(make_builtin_backends().size()), files);
}

TEST(Registry, UnknownNamesListTheValidOnes) {
  EXPECT_EQ(builtin_registry().find("flash").name, "flash");
  test::expect_error<InputError>([] { builtin_registry().find("bogus"); },
                                 AllOf(HasSubstr("'bogus'"), HasSubstr("auto, native, _sdpa_cudnn"),
                                       HasSubstr("ffpa_fp8_per_block"), HasSubstr("_npu_fia")));
  EXPECT_THROW(builtin_registry().find(""), InputError);
  EXPECT_THROW(builtin_registry().find("Native"), InputError);
  EXPECT_THROW(builtin_registry().find(kAuto), InputError) << "no backend itself";
}

TEST(Registry, AutoTriesExactBackendsOnly) {
  const Registry& registry = builtin_registry();
  EXPECT_THAT(names_of(registry.auto_order(at::kCPU)), ElementsAre("flash", "ffpa", "native"));
  EXPECT_THAT(names_of(registry.auto_order(at::kCUDA)), ElementsAre("_flash_3", "flash", "native"));
  EXPECT_THAT(names_of(registry.auto_order(at::kPrivateUse1)),
              ElementsAre("_native_npu", "native"));
}

TEST(Registry, SortsByPlaceThenName) {
  std::vector<Backend> backends(4);
  backends[0] = {.name = "zeta", .devices = {}};
  backends[1] = {.name = "alpha", .devices = {}};
  backends[2] = {.name = "second", .devices = {}, .listing = 2};
  backends[3] = {.name = "first", .devices = {}, .listing = 1};
  EXPECT_EQ(Registry(backends).names(), "auto, first, second, alpha, zeta");
}

TEST(Registry, NamesAreUniqueAndNotAuto) {
  const auto named = [](const char* name) { return Backend{.name = name, .devices = {}}; };
  EXPECT_THROW(Registry({named("a"), named("a")}), ConfigError);
  EXPECT_THROW(Registry({named("auto")}), ConfigError);
  EXPECT_THROW(Registry({named("")}), ConfigError);
}

// What the user reads in a table must be complete.
TEST(Registry, EveryBackendSaysWhatItTakes) {
  for (const Backend& backend : builtin_registry().backends()) {
    SCOPED_TRACE(backend.name);
    EXPECT_FALSE(backend.description.empty());
    EXPECT_FALSE(backend.devices.empty());
    for (const DeviceSupport& support : backend.devices) {
      EXPECT_FALSE(support.can.dtypes.empty());
      EXPECT_LE(support.can.min_head_dim, support.can.max_head_dim);
      EXPECT_TRUE(support.can.causal);
      EXPECT_TRUE(support.can.mask || !support.can.mask_under_context_parallelism);
      const Availability here = support.availability(at::Device(support.device));
      EXPECT_EQ(here.available, here.reason.empty()) << here.reason;
      EXPECT_EQ(here.available, here.remedy.empty()) << here.remedy;
      if (!support.run) {
        EXPECT_FALSE(here.available) << "nothing to call";
      }
      if (support.device == at::kCPU) {
        EXPECT_TRUE(here.available);
      }
    }
  }
}

}  // namespace
}  // namespace cachedit::attention
