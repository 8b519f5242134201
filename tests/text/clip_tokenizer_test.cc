#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "tokenizer_cases.h"

namespace cachedit::text {
namespace {

using test::expect_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kStart = 1212;
constexpr int64_t kEnd = 1213;

std::filesystem::path demo_folder() { return test::demo_model() / "tokenizer"; }

const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = load_clip_tokenizer(demo_folder());
  return *tokenizer;
}

TokenizerFolder copy_of_demo() { return {demo_folder(), {"vocab.json", "merges.txt"}}; }

TEST(ClipTokenizer, GivesTheReferencesIds) {
  EXPECT_GE(expect_cases(demo_tokenizer(), read_golden("clip.json")), 290u);
}

class ClipLayouts : public ::testing::TestWithParam<const char*> {};

TEST_P(ClipLayouts, GivesTheReferencesIds) {
  const nlohmann::json golden = read_golden(std::string("clip_") + GetParam() + ".json");
  const TokenizerFolder folder = copy_of_demo();
  folder.write_files(golden);
  EXPECT_GE(expect_cases(*load_clip_tokenizer(folder.path()), golden), 20u);
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, ClipLayouts,
                         ::testing::Values("bare", "flux1", "padded_with_a_mark", "more_tokens"),
                         [](const auto& layout) { return std::string(layout.param); });

TEST(ClipTokenizer, ReadsTheLengthLimit) {
  EXPECT_EQ(demo_tokenizer().model_max_length(), 24);
  const TokenizerFolder folder = copy_of_demo();
  EXPECT_EQ(load_clip_tokenizer(folder.path())->model_max_length(),
            std::numeric_limits<int64_t>::max());
  folder.write("tokenizer_config.json", {{"model_max_length", 1e30}});
  EXPECT_EQ(load_clip_tokenizer(folder.path())->model_max_length(),
            std::numeric_limits<int64_t>::max());
  folder.write("tokenizer_config.json", {{"model_max_length", 77}});
  EXPECT_EQ(load_clip_tokenizer(folder.path())->model_max_length(), 77);
}

TEST(ClipTokenizer, FoldsCaseAndWhiteSpace) {
  EXPECT_EQ(demo_tokenizer().encode("A  CAT\n", 24).ids, demo_tokenizer().encode("a cat", 24).ids);
}

TEST(ClipTokenizer, FramesAndPadsAnEmptyText) {
  const Encoding encoding = demo_tokenizer().encode("", 5);
  EXPECT_EQ(encoding.ids, (std::vector<int64_t>{kStart, kEnd, kEnd, kEnd, kEnd}));
  EXPECT_EQ(encoding.used, 2);
  EXPECT_EQ(encoding.cut, "");
}

TEST(ClipTokenizer, KeepsBothSpecialTokensWhenItCuts) {
  const Encoding encoding = demo_tokenizer().encode("Red apple \xE2\x80\x94 Caf\xC3\xA9 CHAIR", 4);
  ASSERT_EQ(encoding.ids.size(), 4u);
  EXPECT_EQ(encoding.used, 4);
  EXPECT_EQ(encoding.ids.front(), kStart);
  EXPECT_EQ(encoding.ids.back(), kEnd);
  // As the user wrote it: case and spelling are those of the prompt.
  EXPECT_EQ(encoding.cut, "\xE2\x80\x94 Caf\xC3\xA9 CHAIR");
}

TEST(ClipTokenizer, CutsNothingWhenTheTextJustFits) {
  const Encoding whole = demo_tokenizer().encode("a red heart", 24);
  EXPECT_EQ(demo_tokenizer().encode("a red heart", whole.used).cut, "");
  EXPECT_EQ(demo_tokenizer().encode("a red heart", whole.used - 1).cut, "heart");
}

TEST(ClipTokenizer, NamesWhatFourHundredWordsLose) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += i == 0 ? "cat" : " cat";
  const Encoding encoding = demo_tokenizer().encode(text, 77);
  EXPECT_EQ(encoding.ids.size(), 77u);
  EXPECT_EQ(encoding.cut.size(), (400 - 75) * 4u - 1);
}

TEST(ClipTokenizer, AcceptsMoreThanTheModelsLength) {
  EXPECT_EQ(demo_tokenizer().encode("a cat", 300).ids.size(), 300u);
}

TEST(ClipTokenizer, RefusesTextThatIsNotUtf8) {
  expect_error<InputError>([] { demo_tokenizer().encode("caf\xFF", 24); },
                           AllOf(HasSubstr("0xFF"), HasSubstr("position 3")));
  expect_error<InputError>([] { demo_tokenizer().encode("\xED\xA0\x80", 24); },
                           HasSubstr("position 0"));
}

TEST(ClipTokenizer, RefusesLengthsWithoutRoomForSpecialTokens) {
  EXPECT_EQ(demo_tokenizer().encode("a cat", 2).ids, (std::vector<int64_t>{kStart, kEnd}));
  for (const int64_t length : {int64_t{1}, int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    expect_error<InputError>([&] { demo_tokenizer().encode("a cat", length); },
                             HasSubstr("max_length must be from 2"));
  }
}

TEST(ClipTokenizer, RefusesAbsurdlyLongText) {
  const std::string text(size_t{5} << 20, 'a');
  expect_error<InputError>([&] { demo_tokenizer().encode(text, 24); }, HasSubstr("at most"));
}

TEST(ClipTokenizer, NamesAMissingFile) {
  const TokenizerFolder no_vocabulary(demo_folder(), {"merges.txt"});
  expect_error<IoError>([&] { load_clip_tokenizer(no_vocabulary.path()); },
                        HasSubstr((no_vocabulary.path() / "vocab.json").string()));
  const TokenizerFolder no_merges(demo_folder(), {"vocab.json"});
  expect_error<IoError>([&] { load_clip_tokenizer(no_merges.path()); },
                        HasSubstr((no_merges.path() / "merges.txt").string()));
}

TEST(ClipTokenizer, RefusesADamagedVocabulary) {
  const TokenizerFolder folder = copy_of_demo();
  const auto refuses = [&](const std::string& vocabulary, const std::string& text) {
    folder.folder().write("vocab.json", vocabulary);
    expect_error<ConfigError>([&] { load_clip_tokenizer(folder.path()); },
                              AllOf(HasSubstr("vocab.json"), HasSubstr(text)));
  };
  refuses("[1, 2]", "must be an object");
  refuses("{}", "an empty one");
  refuses(R"({"a": 0, "b": 0})", "0 twice");
  refuses(R"({"a": "0"})", "must be an integer");
  refuses(R"({"a": -1})", "must be an integer");
  refuses(R"({"a": 0)", "JSON");
}

TEST(ClipTokenizer, RefusesAMissingSpecialToken) {
  const TokenizerFolder folder = copy_of_demo();
  nlohmann::json vocabulary = nlohmann::json::parse(test::read_bytes(folder.path() / "vocab.json"));
  vocabulary.erase("<|startoftext|>");
  folder.write("vocab.json", vocabulary);
  expect_error<ConfigError>([&] { load_clip_tokenizer(folder.path()); },
                            AllOf(HasSubstr("bos_token"), HasSubstr("<|startoftext|>")));
}

TEST(ClipTokenizer, NamesAMalformedMergeByItsLine) {
  const TokenizerFolder folder = copy_of_demo();
  for (const char* line : {"ic", "i c o", " c", "i ", ""}) {
    folder.folder().write("merges.txt", std::string("#version: 0.2\ni c\n") + line + "\nm o\n");
    expect_error<ConfigError>([&] { load_clip_tokenizer(folder.path()); },
                              AllOf(HasSubstr("merges.txt"), HasSubstr("line 3")));
  }
  folder.folder().write("merges.txt", "#version: 0.2\nq zzzz\n");
  expect_error<ConfigError>([&] { load_clip_tokenizer(folder.path()); }, HasSubstr("'zzzz'"));
}

}  // namespace
}  // namespace cachedit::text
