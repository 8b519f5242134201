// summary() and brief_summary() of made-up results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cachedit/cachedit.h"

namespace cachedit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Every third step computed, differences 0.01, 0.02... of the others.
GenerateResult result_of(int64_t steps) {
  GenerateResult result;
  CacheStats stats{.name = "transformer_blocks", .config = "DBCache_F1B0_W0I1M0MC0_R0.5_T0O0"};
  CacheTrace trace;
  for (int64_t i = 0; i < steps; ++i) {
    const bool cached = i % 3 != 0;
    trace.conditional.push_back({.cached = cached, .diff = std::nullopt});
    trace.unconditional.push_back({});
    result.step_seconds.push_back(cached ? 0.25 : 1.0);
    if (!cached) continue;
    const double diff = 0.01 * static_cast<double>(i);
    trace.conditional.back().diff = diff;
    stats.conditional.cached_steps.push_back(i);
    stats.conditional.residual_diffs.push_back({i, {diff}});
    ++stats.conditional.accumulated_cached_steps;
  }
  stats.executed_steps = stats.transformer_executed_steps = steps;
  result.cache = {stats};
  result.cache_traces = {trace};
  return result;
}

/// Columns of a terminal: bytes that do not continue a character.
size_t columns(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

TEST(CacheSummary, IsEmptyWithoutCaching) {
  EXPECT_EQ(summary(GenerateResult()), "");
  EXPECT_EQ(brief_summary(GenerateResult()), "");
}

TEST(CacheSummary, ShowsTableStripAndTime) {
  const std::string text = summary(result_of(10));
  // Cached are 1 2 4 5 7 8: numpy.percentile of 0.01, 0.02, 0.04, 0.05, 0.07, 0.08.
  EXPECT_THAT(text, HasSubstr("|           6 | 0.010 | 0.025 | 0.045 | 0.065 | 0.077 | 0.080 |"));
  EXPECT_THAT(text, HasSubstr("#..#..#..#\n"));
  EXPECT_THAT(text, HasSubstr("(█: 0.080)"));
  EXPECT_THAT(text, HasSubstr("time saved: 4.500 s: 6 cached steps took 250.00 ms each, a computed "
                              "one takes 1000.00 ms (1.82x)"));
  EXPECT_THAT(text, Not(HasSubstr("NaN")));
  EXPECT_EQ(brief_summary(result_of(10)), "DBCache_F1B0_W0I1M0MC0_R0.5_T0O0_S6");
}

TEST(CacheSummary, FitsATerminalForAnyNumberOfSteps) {
  for (const int64_t steps : {1, 4, 28, 50, 51, 100, 150}) {
    const std::string text = summary(result_of(steps));
    std::istringstream lines(text);
    int64_t marks = 0;
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(columns(line), 100U) << line;
      if (line.find_first_not_of(" #.") == std::string::npos) {
        marks += std::count_if(line.begin(), line.end(), [](char c) { return c != ' '; });
      }
    }
    EXPECT_EQ(marks, steps);
  }
}

TEST(CacheSummary, NaNIsNamedOnce) {
  GenerateResult result = result_of(10);
  for (const int64_t step : {3, 6}) {
    result.cache[0].conditional.residual_diffs.push_back({step, {std::nan("")}});
    result.cache_traces[0].conditional[static_cast<size_t>(step)].diff = std::nan("");
  }
  const std::string text = summary(result);
  EXPECT_THAT(text, AllOf(HasSubstr("2 differences are NaN"), HasSubstr("▂▃?▅▆?██")));
  EXPECT_EQ(text.find("NaN"), text.rfind("NaN"));
  EXPECT_THAT(text, HasSubstr("| 0.010 | 0.025 | 0.045 | 0.065 | 0.077 | 0.080 |"))
      << "and kept out of the figures";
}

TEST(CacheSummary, StepsWithoutADifferenceHaveNoFigures) {
  GenerateResult result = result_of(3);
  for (auto& [step, diffs] : result.cache[0].conditional.residual_diffs) diffs = {-1.0};
  for (CacheStep& step : result.cache_traces[0].conditional) step.diff.reset();
  EXPECT_THAT(summary(result), AllOf(HasSubstr("|           2 |     - |     - |"),
                                     Not(HasSubstr("diff  ")), Not(HasSubstr("-1"))));
}

TEST(CacheSummary, PrunedBlocksAreAPartOfAll) {
  GenerateResult result = result_of(3);
  result.cache[0].config = "DBPrune_F1B0_W0I1M0MC0_R0.5_T1O1";
  result.cache[0].conditional.pruned_blocks = {0, 3, 2};
  result.cache[0].conditional.actual_blocks = {10, 10, 10};
  EXPECT_EQ(brief_summary(result), "DBPrune_F1B0_W0I1M0MC0_R0.5_P16.67_T1O1_S2");
  EXPECT_THAT(summary(result), HasSubstr("|        5/30 |"));
  result.cache[0].conditional.pruned_blocks = {0, 3, 0};
  EXPECT_EQ(brief_summary(result), "DBPrune_F1B0_W0I1M0MC0_R0.5_P10.0_T1O1_S2");
}

}  // namespace
}  // namespace cachedit
