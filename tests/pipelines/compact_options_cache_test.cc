// parse_cache_options().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/cachedit.h"
#include "support/expect_error.h"

namespace cachedit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string printed(const EnableCacheOptions& options) {
  const auto* prune = std::get_if<DBPruneConfig>(&options.cache_config);
  const std::string config =
      prune != nullptr ? strify(*prune) : strify(std::get<DBCacheConfig>(options.cache_config));
  return config + "_" +
         (options.calibrator_config ? strify(*options.calibrator_config) : std::string("T0O0"));
}

TEST(CompactOptions, WhatStrifyWritesReadsBack) {
  for (const char* text : {"DBCache_F8B0_W8I1M0MC0_R0.08_T0O0", "DBCache_F1B2_W4I2M9MC3_R0.35_T1O1",
                           "DBCache_F1B0_W3I1M0MC0_R1e-05_T1O4", "DBCache_F1B0_W3I1M0MC0_R1.0_NONE",
                           "DBCache_F1B0_W3I1M0MC0_R0.1_SCM110100_dynamic_N6_FR4_once_CFG0_DMDH6",
                           "DBCache_F1B0_W3I1M0MC0_R0.1_SCM110100_static_FR4_repeat_CFG1_DMDH4l",
                           "DBCache_F1B0_W3I1M0MC0_R0.1_DMDH4h", "DBCache_F1B0_W3I1M0MC0_R0.1_FoCa",
                           "DBCache_F1B0_W3I1M0MC0_R0.1_LIN", "DBPrune_F2B1_W3I1M0MC0_R0.1_T1O2"}) {
    EXPECT_EQ(printed(parse_cache_options(text)), text);
  }
}

TEST(CompactOptions, PartsMayBeLeftOutAndComeInAnyOrder) {
  EXPECT_EQ(printed(parse_cache_options("F1B0_W4M0MC0_R0.08_T1O1")),
            "DBCache_F1B0_W4I1M0MC0_R0.08_T1O1");
  EXPECT_EQ(printed(parse_cache_options("T1O2_R0.3_MC2W3_B1F2")),
            "DBCache_F2B1_W3I1M0MC2_R0.3_T1O2");
  EXPECT_EQ(printed(parse_cache_options("F1")), "DBCache_F1B0_W8I1M0MC0_R0.08_T0O0");
  EXPECT_EQ(printed(parse_cache_options("R0.3_DBPrune")), "DBPrune_F8B0_W8I1M0MC0_R0.3_T0O0");
  EXPECT_EQ(std::get<DBCacheConfig>(parse_cache_options("M0MC0").cache_config).max_cached_steps, -1)
      << "0 stands for no limit, as it is printed";
  EXPECT_THAT(
      std::get<DBCacheConfig>(parse_cache_options("SCM101").cache_config).steps_computation_mask,
      ElementsAre(1, 0, 1));
}

TEST(CompactOptions, ResultsAtTheEndAreSkipped) {
  EXPECT_EQ(printed(parse_cache_options("DBCache_F1B0_W4I1M0MC0_R0.08_T1O1_S19")),
            "DBCache_F1B0_W4I1M0MC0_R0.08_T1O1");
  EXPECT_EQ(printed(parse_cache_options("DBPrune_F1B0_W4I1M0MC0_R0.08_P12.5_T0O0_S3")),
            "DBPrune_F1B0_W4I1M0MC0_R0.08_T0O0");
}

TEST(CompactOptions, RefusalsNameThePart) {
  for (const char* text : {"",
                           "_",
                           "F1_",
                           "F",
                           "Fx",
                           "F1B",
                           "F1Q2",
                           "R",
                           "Rx",
                           "SCM",
                           "SCM12",
                           "T1O",
                           "T1Ox",
                           "T2O1",
                           "DMDH",
                           "DMDH6x",
                           "dynamic",
                           "once_FR3",
                           "FR",
                           "N",
                           "CFG2",
                           "foca",
                           "F99999999999999999999",
                           "F1 B0",
                           "S",
                           "F1F2",
                           "T1O1_FoCa",
                           "DBCache_DBPrune",
                           "W4_W5"}) {
    test::expect_error<InputError>([&] { parse_cache_options(text); },
                                   HasSubstr("[cache options]"));
  }
  test::expect_error<InputError>([] { parse_cache_options("F1B0_Q7_R0.1"); }, HasSubstr("'Q7'"));
  test::expect_error<InputError>([] { parse_cache_options("F1_R0.1_T1O1_DMDH6"); },
                                 HasSubstr("'DMDH6'"));
}

}  // namespace
}  // namespace cachedit
