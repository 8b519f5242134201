#include "io/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using test::expect_error;
using test::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kSnapshots = "models--org--name/snapshots";

Environment with_cache(const std::filesystem::path& path) {
  Environment env;
  env.hf_hub_cache = path.string();
  return env;
}

Environment with_home(const std::filesystem::path& path) {
  Environment env;
  env.home = path.string();
  return env;
}

/// A cache that holds org/name at commit "abc123", which branch main names.
void fill_cache(const TempDir& home, const std::string& cache) {
  home.write(cache + "/models--org--name/refs/main", "abc123\n");
  home.write(cache + "/" + kSnapshots + "/abc123/model_index.json", "{}");
}

TEST(ModelPath, AFolderIsTakenAsItIs) {
  const TempDir home;
  std::filesystem::create_directories(home / "org/name");
  EXPECT_EQ(resolve_model_path((home / "org/name").string(), {}), home / "org/name");
}

TEST(ModelPath, AFolderWinsOverTheCache) {
  const TempDir home;
  fill_cache(home, "hub");
  std::filesystem::create_directories(home / "org/name");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(home.path());
  const auto path = resolve_model_path("org/name", with_cache(home / "hub"));
  std::filesystem::current_path(before);
  EXPECT_EQ(path, "org/name");
}

TEST(ModelPath, TheCacheIsSearchedWhereHuggingFaceKeepsIt) {
  const TempDir home;
  const auto expect_found = [&home](const Environment& env, const std::string& cache) {
    fill_cache(home, cache);
    EXPECT_EQ(resolve_model_path("org/name", env), home / cache / kSnapshots / "abc123");
    std::filesystem::remove_all(home / cache);
  };
  const std::string root = home.path().string();
  Environment env = with_home(root);
  expect_found(env, ".cache/huggingface/hub");
  env.xdg_cache_home = root + "/xdg";
  expect_found(env, "xdg/huggingface/hub");
  env.hf_home = root + "/hf";
  expect_found(env, "hf/hub");
  env.hf_hub_cache = "~/direct";
  expect_found(env, "direct");
}

TEST(ModelPath, RevisionsAreBranchesTagsOrCommits) {
  const TempDir home;
  const Environment env = with_cache(home.path());
  fill_cache(home, ".");
  home.write("models--org--name/refs/v1.0", "def456");
  home.write("models--org--name/refs/refs/pr/1", "777aaa");
  for (const char* commit : {"def456", "777aaa"}) {
    std::filesystem::create_directories(home / kSnapshots / commit);
  }
  EXPECT_EQ(resolve_model_path("org/name", env), home / kSnapshots / "abc123");
  EXPECT_EQ(resolve_model_path("org/name@v1.0", env), home / kSnapshots / "def456");
  EXPECT_EQ(resolve_model_path("org/name@refs/pr/1", env), home / kSnapshots / "777aaa");
  EXPECT_EQ(resolve_model_path("org/name@def456", env), home / kSnapshots / "def456");
  expect_error<IoError>(
      [&] { resolve_model_path("org/name@other", env); },
      AllOf(HasSubstr("not this revision"), HasSubstr("hf download org/name --revision other")));
}

TEST(ModelPath, AnOnlySnapshotNeedsNoReference) {
  const TempDir home;
  const Environment env = with_cache(home.path());
  std::filesystem::create_directories(home / kSnapshots / "abc123");
  EXPECT_EQ(resolve_model_path("org/name", env), home / kSnapshots / "abc123");
  expect_error<IoError>([&] { resolve_model_path("org/name@main", env); },
                        HasSubstr("not this revision"));
  std::filesystem::create_directories(home / kSnapshots / "def456");
  expect_error<IoError>([&] { resolve_model_path("org/name", env); },
                        HasSubstr("not this revision"));
}

TEST(ModelPath, AReferenceToASnapshotThatIsNotThereIsRefused) {
  const TempDir home;
  const Environment env = with_cache(home.path());
  std::filesystem::create_directories(home / kSnapshots / "abc123");
  home.write("models--org--name/refs/main", "def456");
  expect_error<IoError>([&] { resolve_model_path("org/name", env); }, HasSubstr("hf download"));
  // A damaged cache does not lead out of itself.
  home.write("models--org--name/refs/main", "../../..");
  expect_error<IoError>([&] { resolve_model_path("org/name", env); }, HasSubstr("hf download"));
}

TEST(ModelPath, AMissingHubNameTellsTheDownloadCommandAndTheCache) {
  const TempDir home;
  const Environment env = with_cache(home / "hub");
  expect_error<IoError>([&] { resolve_model_path("black-forest-labs/FLUX.1-dev", env); },
                        AllOf(HasSubstr("hf download black-forest-labs/FLUX.1-dev"),
                              HasSubstr((home / "hub").string()), Not(HasSubstr("--revision"))));
}

TEST(ModelPath, MissingPathsAreNotTakenForHubNames) {
  for (const char* path : {"/no/such", "./no/such", "../nosuch/x", "~/nosuch", "a/b/c", "plain",
                           "org/", "/name", "org/na me", "org/name@", "org/name@../x", "org/..",
                           "org/name@a//b", ".hidden/name", "/nosuch"}) {
    expect_error<IoError>(
        [path] { resolve_model_path(path, with_home("/nonexistent")); },
        AllOf(HasSubstr(path), HasSubstr("no such folder"), Not(HasSubstr("hf download"))));
  }
  expect_error<IoError>([] { resolve_model_path("", {}); }, HasSubstr("empty"));
}

TEST(ModelPath, TildeIsTheHomeFolder) {
  const TempDir home;
  std::filesystem::create_directories(home / "models/flux");
  EXPECT_EQ(resolve_model_path("~/models/flux", with_home(home.path())), home / "models/flux");
}

TEST(ModelPath, AFileIsRefusedAsAFile) {
  const TempDir home;
  const auto path = home.write("flux1-dev.safetensors", "x");
  expect_error<IoError>([&] { resolve_model_path(path.string(), {}); },
                        AllOf(HasSubstr("flux1-dev.safetensors"), HasSubstr("got a file"),
                              HasSubstr("model_index.json")));
}

}  // namespace
}  // namespace cachedit::io
