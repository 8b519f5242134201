#include "io/weight_store.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::io {
namespace {

using test::expect_error;
using test::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

at::Tensor numbers(int64_t count) { return at::arange(count, at::kFloat); }

void write_index(const TempDir& folder, const std::map<std::string, std::string>& shard_of,
                 const std::string& base = "model") {
  const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", shard_of}};
  folder.write(base + ".safetensors.index.json", index.dump());
}

/// Tensors a and b in one.safetensors, c in two.safetensors.
void write_sharded(const TempDir& folder) {
  write_safetensors(folder / "one.safetensors", {{"a", numbers(3)}, {"b", numbers(2)}});
  write_safetensors(folder / "two.safetensors", {{"c", numbers(4)}});
  write_index(folder,
              {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
}

auto opening(const TempDir& folder) {
  return [&folder] { WeightStore::open(folder.path()); };
}

TEST(WeightStore, ReadsASingleFileOfEitherName) {
  for (const char* name : {"model.safetensors", "diffusion_pytorch_model.safetensors"}) {
    const TempDir folder;
    write_safetensors(folder / name, {{"a", numbers(3).to(at::kBFloat16)}});
    const WeightStore store = WeightStore::open(folder.path());
    EXPECT_THAT(store.names(), ElementsAre("a"));
    EXPECT_EQ(store.entry("a").dtype, at::kBFloat16);
    EXPECT_EQ(store.parameters(), 3);
    EXPECT_EQ(store.bytes(), 6);
  }
}

TEST(WeightStore, ReadsShardsThroughTheIndex) {
  for (const char* base : {"model", "diffusion_pytorch_model"}) {
    const TempDir folder;
    write_safetensors(folder / "one.safetensors", {{"a", numbers(3)}, {"b", numbers(2)}});
    write_safetensors(folder / "two.safetensors", {{"c", numbers(4)}});
    write_index(folder,
                {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}},
                base);
    const WeightStore store = WeightStore::open(folder.path());
    EXPECT_THAT(store.names(), ElementsAre("a", "b", "c"));
    EXPECT_TRUE(at::equal(store.tensor("c"), numbers(4)));
    EXPECT_EQ(store.tensor("c").const_data_ptr(), store.tensor("c").const_data_ptr());
    EXPECT_EQ(store.parameters(), 9);
    EXPECT_EQ(store.bytes(), 36);
    EXPECT_FALSE(store.contains("d"));
    expect_error<WeightError>([&] { store.tensor("d"); }, HasSubstr("'d'"));
    expect_error<WeightError>([&] { store.entry("d"); }, HasSubstr("'d'"));
  }
}

// With both layouts there, diffusers' loader takes the index of its own names, and transformers'
// loader the single file of its.
TEST(WeightStore, WhichLayoutWinsDependsOnTheName) {
  for (const bool diffusers : {false, true}) {
    const std::string single =
        diffusers ? "diffusion_pytorch_model.safetensors" : "model.safetensors";
    const TempDir folder;
    write_sharded(folder);
    if (diffusers) {
      std::filesystem::rename(folder / "model.safetensors.index.json",
                              folder / (single + ".index.json"));
    }
    write_safetensors(folder / single, {{"single", numbers(1)}});
    ::testing::internal::CaptureStderr();
    const WeightStore store = WeightStore::open(folder.path());
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("is left out"));
    EXPECT_EQ(store.contains("single"), !diffusers);
  }
}

TEST(WeightStore, EveryAbsentShardIsListed) {
  const TempDir folder;
  write_sharded(folder);
  std::filesystem::remove(folder / "two.safetensors");
  expect_error<WeightError>(opening(folder),
                            AllOf(HasSubstr("two.safetensors"), Not(HasSubstr("one.safetensors"))));
  std::filesystem::remove(folder / "one.safetensors");
  expect_error<WeightError>(opening(folder),
                            AllOf(HasSubstr("one.safetensors"), HasSubstr("two.safetensors")));
}

TEST(WeightStore, AbsentShardsAreFoundBeforeAnyShardIsRead) {
  const TempDir folder;
  folder.write("one.safetensors", "damaged");
  write_index(folder, {{"a", "one.safetensors"}, {"b", "absent.safetensors"}});
  expect_error<WeightError>(opening(folder), HasSubstr("absent.safetensors"));
}

TEST(WeightStore, EveryTensorThatItsShardLacksIsNamed) {
  const TempDir folder;
  write_sharded(folder);
  write_index(folder, {{"a", "one.safetensors"},
                       {"b", "two.safetensors"},
                       {"c", "two.safetensors"},
                       {"lost", "two.safetensors"}});
  expect_error<WeightError>(
      opening(folder),
      AllOf(HasSubstr("b (two.safetensors), lost (two.safetensors)"), Not(HasSubstr("a (one"))));
}

TEST(WeightStore, TensorsThatTheIndexDoesNotListAreLeftOutWithOneWarning) {
  const TempDir folder;
  write_sharded(folder);
  write_index(folder, {{"a", "one.safetensors"}, {"c", "two.safetensors"}});
  ::testing::internal::CaptureStderr();
  const WeightStore store = WeightStore::open(folder.path());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("b (one.safetensors)"));
  EXPECT_THAT(store.names(), ElementsAre("a", "c"));
  EXPECT_EQ(store.parameters(), 7);
}

TEST(WeightStore, AShardTruncatedByOneByteIsRefusedByNameAndTensor) {
  const TempDir folder;
  write_sharded(folder);
  const auto path = folder / "two.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  expect_error<WeightError>(opening(folder), AllOf(HasSubstr("two.safetensors"), HasSubstr("'c'")));
}

TEST(WeightStore, ShardsOutsideTheFolderAreRefused) {
  const TempDir folder;
  write_safetensors(folder / "x.safetensors", {{"a", numbers(1)}});
  std::filesystem::create_directory(folder / "sub");
  const std::string absolute = (folder / "x.safetensors").string();
  for (const std::string& name :
       {std::string("../x.safetensors"), absolute, std::string("sub/../../x.safetensors"),
        std::string(".."), std::string("."), std::string(""), std::string("sub/x.safetensors"),
        std::string("x.safetensors\0", 14)}) {
    const nlohmann::json index = {{"weight_map", {{"a", name}}}};
    folder.write("sub/model.safetensors.index.json", index.dump());
    expect_error<WeightError>([&] { WeightStore::open(folder / "sub"); },
                              HasSubstr("the index's own folder"));
  }
}

TEST(WeightStore, MalformedIndexesAreRefused) {
  const TempDir folder;
  const auto expect_fault = [&folder](const char* index, const char* text) {
    folder.write("model.safetensors.index.json", index);
    expect_error<WeightError>(opening(folder), AllOf(HasSubstr("index.json"), HasSubstr(text)));
  };
  expect_fault("[]", "weight_map");
  expect_fault("{}", "weight_map");
  expect_fault(R"({"weight_map":{}})", "weight_map");
  expect_fault(R"({"weight_map":["a"]})", "weight_map");
  expect_fault(R"({"weight_map":{"a":1}})", "'a'");
  folder.write("model.safetensors.index.json", "{\"weight_map\":");
  expect_error<ConfigError>(opening(folder), HasSubstr("must be JSON"));
}

TEST(WeightStore, PickleFilesAreNamedAndNotRead) {
  const TempDir folder;
  folder.write("diffusion_pytorch_model-00001-of-00002.bin", "x");
  folder.write("diffusion_pytorch_model-00002-of-00002.bin", "x");
  folder.write("diffusion_pytorch_model.bin.index.json", "{}");
  expect_error<IoError>(opening(folder),
                        AllOf(HasSubstr("only safetensors are read"),
                              HasSubstr("diffusion_pytorch_model-00001-of-00002.bin"),
                              HasSubstr("diffusion_pytorch_model-00002-of-00002.bin")));
  for (const char* name : {"model.pt", "model.pth", "model.ckpt"}) {
    const TempDir other;
    other.write(name, "x");
    expect_error<IoError>(opening(other),
                          AllOf(HasSubstr("only safetensors are read"), HasSubstr(name)));
  }
}

TEST(WeightStore, VariantsAreNamedAndNotRead) {
  const TempDir folder;
  write_safetensors(folder / "model.fp16.safetensors", {{"a", numbers(1)}});
  expect_error<IoError>(opening(folder), AllOf(HasSubstr("model.fp16.safetensors"),
                                               HasSubstr("variants"), Not(HasSubstr("pickle"))));
}

TEST(WeightStore, AFolderWithoutWeightsAndAnAbsentFolderAreRefused) {
  const TempDir folder;
  expect_error<IoError>(opening(folder), HasSubstr("no weights"));
  expect_error<IoError>([&] { WeightStore::open(folder / "none"); }, HasSubstr("none"));
}

TEST(WeightStore, ReadsTheShippedModelWithoutAWarning) {
  ::testing::internal::CaptureStderr();
  const WeightStore transformer = WeightStore::open(test::demo_model() / "transformer");
  const WeightStore clip = WeightStore::open(test::demo_model() / "text_encoder");
  const WeightStore t5 = WeightStore::open(test::demo_model() / "text_encoder_2");
  const WeightStore vae = WeightStore::open(test::demo_model() / "vae");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), IsEmpty());
  EXPECT_EQ(transformer.parameters(), 4501568);
  EXPECT_EQ(transformer.bytes(), 2 * 4501568);
  EXPECT_EQ(transformer.entry("x_embedder.weight").shape, (std::vector<int64_t>{128, 64}));
  EXPECT_EQ(transformer.tensor("x_embedder.weight").scalar_type(), at::kBFloat16);
  EXPECT_TRUE(clip.contains("final_layer_norm.weight"));
  EXPECT_TRUE(t5.contains("encoder.final_layer_norm.weight"));
  EXPECT_TRUE(vae.contains("decoder.conv_in.weight"));
}

}  // namespace
}  // namespace cachedit::io
