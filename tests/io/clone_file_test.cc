#include "io/clone_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(CopyContents, CopiesBytesAndPermissions) {
  test::TempDir folder;
  for (const size_t size : {size_t{0}, size_t{5}, (size_t{2} << 20) + 3}) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    const fs::path from = folder.write("from", bytes);
    fs::permissions(from, fs::perms(0640));
    copy_contents(from, folder / "to");
    EXPECT_EQ(test::read_bytes(folder / "to"), bytes);
    EXPECT_EQ(fs::status(folder / "to").permissions(), fs::perms(0640));
    EXPECT_EQ(fs::hard_link_count(from), 1u);
  }
}

TEST(CopyContents, SaysWhichFileMadeTrouble) {
  test::TempDir folder;
  const fs::path from = folder.write("from", "x");
  test::expect_error<IoError>([&] { copy_contents(folder / "absent", folder / "to"); },
                              HasSubstr("absent] the file cannot be read: got \"No such file"));
  test::expect_error<IoError>([&] { copy_contents(folder.path(), folder / "to"); },
                              HasSubstr("cannot be read: got \"something that is not a file"));
  test::expect_error<IoError>([&] { copy_contents(from, folder / "no" / "to"); },
                              HasSubstr("no/to] the file cannot be written"));
  EXPECT_FALSE(fs::exists(folder / "to"));
}

TEST(CloneFile, LargeFilesGetASecondName) {
  test::TempDir folder;
  const fs::path large = folder.write("large", std::string(size_t{1} << 20, 'x'));
  const fs::path small = folder.write("small", "x");
  fs::create_symlink(large, folder / "link");
  clone_file(folder / "link", folder / "large copy");
  clone_file(small, folder / "small copy");
  EXPECT_FALSE(fs::is_symlink(folder / "large copy"));
  EXPECT_EQ(fs::hard_link_count(large), 2u);
  EXPECT_EQ(fs::hard_link_count(small), 1u);
  EXPECT_EQ(test::read_bytes(folder / "small copy"), "x");
}

}  // namespace
}  // namespace cachedit::io
