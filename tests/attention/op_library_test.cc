#include "attention/op_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::attention {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OpLibrary, AFileThatIsMissingOrNoLibraryIsNamed) {
  const test::TempDir folder;
  test::expect_error<IoError>([] { load_op_library("/no/such/library.so"); },
                              AllOf(HasSubstr("no such file"), HasSubstr("/no/such/library.so")));
  test::expect_error<IoError>([&] { load_op_library(folder.path()); }, HasSubstr("no such file"));
  const auto text = folder.write("text.so", "not a library");
  test::expect_error<IoError>([&] { load_op_library(text); },
                              AllOf(HasSubstr(text.string()), HasSubstr("shared library")));
  const auto empty = folder.write("empty.so", "");
  EXPECT_THROW(load_op_library(empty), IoError);
}

TEST(OpLibrary, AListIsSplitAtColons) {
  EXPECT_NO_THROW(load_op_libraries(""));
  EXPECT_NO_THROW(load_op_libraries("::"));
  test::expect_error<IoError>([] { load_op_libraries(":/first.so:/second.so"); },
                              HasSubstr("'/first.so'"));
}

// Any shared library loads; libm is on every machine that runs this.
TEST(OpLibrary, LoadsByPathMoreThanOnce) {
  for (const char* path : {"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6",
                           "/usr/lib/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"}) {
    if (!std::filesystem::exists(path)) continue;
    EXPECT_NO_THROW(load_op_library(path));
    EXPECT_NO_THROW(load_op_library(path));
    return;
  }
  GTEST_SKIP() << "no libm.so.6 in the usual places";
}

}  // namespace
}  // namespace cachedit::attention
