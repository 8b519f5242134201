#include <gtest/gtest.h>

#include "cachedit/log.h"
#include "support/reader_fuzz.h"
#include "support/temp_dir.h"
#include "support/text_mutator.h"

namespace cachedit::io {
namespace {

TEST(ReaderFuzz, DamagedFilesAreReadOrRefusedNeverMore) {
  set_log_level(LogLevel::kError);
  const test::TempDir scratch;
  const test::FuzzCounts counts = test::fuzz_readers(20260101, 5000, scratch.path());
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(counts.inputs, 5000);
  EXPECT_EQ(counts.accepted + counts.refused, 5000);
  // Both must be common, or the mutator tests only one side of the readers.
  EXPECT_GT(counts.accepted, 500);
  EXPECT_GT(counts.refused, 2000);
}

TEST(ReaderFuzz, OneSeedGivesOneSequence) {
  test::TextMutator a(7), b(7), c(8);
  const std::string text = R"({"a":[1,2],"b":{"c":"d"}})";
  bool other_seed_differs = false;
  for (int i = 0; i < 50; ++i) {
    const std::string mutated = a.mutate(text);
    EXPECT_EQ(mutated, b.mutate(text));
    other_seed_differs |= mutated != c.mutate(text);
  }
  EXPECT_TRUE(other_seed_differs);
}

}  // namespace
}  // namespace cachedit::io
