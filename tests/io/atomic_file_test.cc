#include "io/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using test::expect_error;
using test::read_bytes;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

size_t count_files(const std::filesystem::path& folder) {
  size_t count = 0;
  for (const auto& item : std::filesystem::directory_iterator(folder)) count += item.exists();
  return count;
}

TEST(AtomicFile, AppearsWholeOnCommit) {
  const TempDir folder;
  AtomicFile file(folder / "out.txt");
  file.write("one ");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.txt"));
  file.write("two");
  file.commit();
  EXPECT_EQ(read_bytes(folder / "out.txt"), "one two");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(AtomicFile, WithoutCommitTheOldFileStaysAndNothingIsLeft) {
  const TempDir folder;
  folder.write("out.txt", "old");
  {
    AtomicFile file(folder / "out.txt");
    file.write("new");
  }
  EXPECT_EQ(read_bytes(folder / "out.txt"), "old");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(AtomicFile, ReplacesAnOlderFile) {
  const TempDir folder;
  folder.write("out.txt", "a longer old text");
  AtomicFile file(folder / "out.txt");
  file.write("new");
  file.commit();
  EXPECT_EQ(read_bytes(folder / "out.txt"), "new");
}

TEST(AtomicFile, TwoAtOnceDoNotMeet) {
  const TempDir folder;
  AtomicFile a(folder / "a"), b(folder / "b"), again(folder / "a");
  a.write("a");
  b.write("b");
  again.write("again");
  b.commit();
  a.commit();
  EXPECT_EQ(read_bytes(folder / "a"), "a");
  again.commit();
  EXPECT_EQ(read_bytes(folder / "a"), "again");
  EXPECT_EQ(read_bytes(folder / "b"), "b");
  EXPECT_EQ(count_files(folder.path()), 2u);
}

TEST(AtomicFile, PermissionsFollowTheUmask) {
  const TempDir folder;
  const mode_t before = umask(0027);
  AtomicFile file(folder / "out.txt");
  file.commit();
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat((folder / "out.txt").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0640u);
}

TEST(AtomicFile, ALinkIsFollowed) {
  const TempDir folder;
  folder.write("real/target.txt", "old");
  std::filesystem::create_symlink(folder / "real/target.txt", folder / "link.txt");
  AtomicFile file(folder / "link.txt");
  file.write("new");
  file.commit();
  EXPECT_EQ(read_bytes(folder / "real/target.txt"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.txt"));
}

TEST(AtomicFile, ANameInTheWorkingFolderNeedsNoParent) {
  const TempDir folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_NO_THROW(check_writable("plain.txt"));
  std::filesystem::current_path(before);
  EXPECT_EQ(count_files(folder.path()), 0u);
}

TEST(AtomicFile, AFailedWriteIsReportedAndLeavesNothing) {
  const TempDir folder;
  folder.write("out.txt", "old");
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  // A limit on file sizes stands in for a full disk.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string text;
  try {
    AtomicFile file(folder / "out.txt");
    file.write(std::string(5000, 'x'));
    file.commit();
  } catch (const IoError& error) {
    text = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(text, AllOf(HasSubstr("out.txt"), HasSubstr("File too large")));
  EXPECT_EQ(read_bytes(folder / "out.txt"), "old");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(AtomicFile, ACommitThatCannotRenameIsReportedAndLeavesNothing) {
  const TempDir folder;
  {
    AtomicFile file(folder / "out.txt");
    std::filesystem::create_directories(folder / "out.txt/inner");
    expect_error<IoError>([&] { file.commit(); }, HasSubstr("out.txt"));
  }
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(CheckWritable, LeavesNothingBehind) {
  const TempDir folder;
  check_writable(folder / "new.png");
  EXPECT_EQ(count_files(folder.path()), 0u);
  folder.write("old.png", "old");
  check_writable(folder / "old.png");
  EXPECT_EQ(read_bytes(folder / "old.png"), "old");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

TEST(CheckWritable, RefusesWhatCannotBecomeAFile) {
  const TempDir folder;
  const auto expect_refusal = [](const std::filesystem::path& path, const char* text) {
    expect_error<IoError>([&] { check_writable(path); },
                          AllOf(HasSubstr(path.string()), HasSubstr(text)));
  };
  folder.write("file", "x");
  expect_refusal(folder.path(), "a folder");
  expect_refusal(folder / "new/", "a folder");
  expect_refusal(folder / "none/out.png", "no such folder");
  expect_refusal(folder / "file/out.png", "Not a directory");
  expect_refusal(folder / std::string(300, 'n'), "File name too long");
  expect_refusal("", "an empty path");
  // Renaming a picture over it would take the device from every other program.
  expect_refusal("/dev/null", "not a plain file");
  expect_refusal("/proc/cachedit.png", "No such file or directory");
  EXPECT_EQ(count_files(folder.path()), 1u);
}

}  // namespace
}  // namespace cachedit::io
