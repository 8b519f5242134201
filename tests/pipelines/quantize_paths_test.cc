// Where quantize_checkpoint() writes: folders that are there or not, what earlier runs left, and
// files that cannot be read.
#include <ATen/TensorOperators.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <set>

#include "cachedit/error.h"
#include "cachedit/pipeline.h"
#include "cachedit/quantize.h"
#include "io/safetensors.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// The number of a process that has ended.
pid_t ended_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

class QuantizePaths : public ::testing::Test {
 protected:
  fs::path out() const { return folder_ / "out"; }
  fs::path model() const {
    const fs::path copy = folder_ / "model";
    fs::copy(test::demo_model(), copy, fs::copy_options::recursive);
    return copy;
  }
  static void quantize(const fs::path& save_path, const fs::path& model = test::demo_model(),
                       bool stop = false) {
    QuantizeCheckpointOptions options{.config = {.quant_type = "int8_per_row"}};
    options.on_layer = [=](const std::string&, int64_t, int64_t) { return !stop; };
    quantize_checkpoint(model.string(), save_path, options);
  }
  /// A folder as a run leaves it that cannot tidy up.
  fs::path leave(const fs::path& place, pid_t process, const std::string& target = "out") const {
    const fs::path left =
        place / (".cachedit-" + std::to_string(process) + "-quantize-" + target + ".tmp");
    fs::create_directories(left / "transformer");
    return left;
  }
  static std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& item : fs::directory_iterator(folder)) {
      names.insert(item.path().filename().string());
    }
    return names;
  }
  static ino_t inode(const fs::path& path) {
    struct stat status = {};
    EXPECT_EQ(stat(path.c_str(), &status), 0);
    return status.st_ino;
  }

  test::TempDir folder_;
};

TEST_F(QuantizePaths, AnEmptyFolderIsFilledAndNotReplaced) {
  fs::create_directory(out());
  const ino_t before = inode(out());
  quantize(out());
  EXPECT_EQ(inode(out()), before);
  std::set<std::string> expected = names_in(test::demo_model());
  EXPECT_EQ(names_in(out()), expected);
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"out"});
}

TEST_F(QuantizePaths, AFolderThatIsFilledIsEmptyAgainAfterAFailure) {
  fs::create_directory(out());
  EXPECT_THROW(quantize(out(), test::demo_model(), true), Cancelled);
  EXPECT_TRUE(fs::is_empty(out()));
  fs::create_directory_symlink(out(), folder_ / "link");
  quantize(folder_ / "link" / "");
  EXPECT_TRUE(fs::exists(out() / "model_index.json"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
}

TEST_F(QuantizePaths, WhatEndedRunsLeftIsRemoved) {
  const fs::path beside = leave(folder_.path(), ended_process());
  quantize(out());
  EXPECT_FALSE(fs::exists(beside));
  const fs::path filled = folder_ / "filled";
  const fs::path inside = leave(filled, ended_process(), "filled");
  quantize(filled);
  EXPECT_FALSE(fs::exists(inside));
  EXPECT_TRUE(fs::exists(filled / "model_index.json"));
}

TEST_F(QuantizePaths, WhatIsNotAnEndedRunsStays) {
  const pid_t ended = ended_process();
  const fs::path kept[] = {leave(folder_.path(), getppid()), leave(folder_.path(), ended, "other"),
                           folder_.path() / ".cachedit-quantize-out.tmp",
                           folder_.path() / ".cachedit-1x-quantize-out.tmp"};
  for (const fs::path& path : kept) fs::create_directories(path);
  const fs::path file =
      folder_.write(".cachedit-" + std::to_string(ended) + "-quantize-out.tmp", "a file");
  // Of a process whose number means nothing here, as in another container.
  const fs::path elsewhere = leave(folder_.path(), ended_process());
  const int lock = open(elsewhere.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  quantize(out());
  for (const fs::path& path : kept) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(test::read_bytes(file), "a file");
  EXPECT_TRUE(fs::exists(elsewhere));
  close(lock);
  fs::remove_all(out());
  quantize(out());
  EXPECT_FALSE(fs::exists(elsewhere));
}

TEST_F(QuantizePaths, OtherTargetsAreRefusedWithAdvice) {
  const auto refused = [&](const fs::path& path, const ::testing::Matcher<std::string>& text) {
    test::expect_error<InputError>([&] { quantize(path); },
                                   AllOf(text, HasSubstr("choose another --save-path")));
  };
  fs::create_directory_symlink(folder_ / "nowhere", folder_ / "link");
  refused(folder_ / "link",
          AllOf(HasSubstr("a link that leads nowhere"), HasSubstr((folder_ / "nowhere").string())));
  refused(folder_ / "link" / "", HasSubstr("a link that leads nowhere"));
  refused(folder_ / "link" / "sub", HasSubstr((folder_ / "link").string() + ", a link to "));
  folder_.write("full/own.txt", "x");
  refused(folder_ / "full", AllOf(HasSubstr("empty or not there yet"), HasSubstr("own.txt")));
  refused(folder_ / "full" / "own.txt", HasSubstr("empty or not there yet"));
  EXPECT_EQ(names_in(folder_.path()), (std::set<std::string>{"full", "link"}));
}

TEST_F(QuantizePaths, WeightsOfOtherFormatsStayBehindInEveryFolder) {
  const fs::path source = model();
  const std::string others[] = {"transformer/a.bin", "vae/old.ckpt", "vae/sub/a.pth", "a.gguf",
                                "text_encoder/model.onnx"};
  const std::string copied[] = {"vae/notes.txt", "vae/sub/b.safetensors", "extra/c.json"};
  for (const std::string& name : others) folder_.write("model/" + name, "weights");
  for (const std::string& name : copied) folder_.write("model/" + name, name);
  quantize(out(), source);
  for (const std::string& name : others) EXPECT_FALSE(fs::exists(out() / name)) << name;
  for (const std::string& name : copied) EXPECT_EQ(test::read_bytes(out() / name), name);
  EXPECT_TRUE(fs::exists(out() / "vae" / "diffusion_pytorch_model.safetensors"));
}

TEST_F(QuantizePaths, LinksThatLeadNowhereAreNamed) {
  const fs::path source = model();
  const fs::path link = source / "vae" / "diffusion_pytorch_model.safetensors";
  fs::remove(link);
  fs::create_symlink("../../blobs/abc", link);
  test::expect_error<IoError>(
      [&] { quantize(out(), source); },
      AllOf(HasSubstr(link.string()), HasSubstr("blobs/abc"),
            HasSubstr("download the checkpoint again"), Not(HasSubstr(".cachedit"))));
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"model"});
}

TEST_F(QuantizePaths, WeightsThatAreNotFiniteAreRefused) {
  const fs::path source = model();
  const fs::path file = source / "transformer" / "diffusion_pytorch_model.safetensors";
  const std::string name = "transformer_blocks.1.attn.to_q.weight";
  std::map<std::string, at::Tensor> tensors;
  {
    const io::SafetensorsFile weights(file);
    for (const auto& item : weights.header().tensors) {
      tensors[item.first] = weights.tensor(item.first).clone();
    }
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    tensors[name][3][4] = bad;
    io::write_safetensors(file, tensors);
    const auto text = AllOf(HasSubstr(name), HasSubstr("must be finite to be quantized"));
    test::expect_error<WeightError>([&] { quantize(out(), source); },
                                    AllOf(text, HasSubstr(file.string())));
    test::expect_error<WeightError>(
        [&] {
          load_pipeline(source.string(),
                        {.quantize_config = QuantizeConfig{.quant_type = "int8_per_row"}});
        },
        text);
  }
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"model"});
}

}  // namespace
}  // namespace cachedit
