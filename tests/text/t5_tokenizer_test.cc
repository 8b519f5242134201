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

constexpr int64_t kPad = 0;
constexpr int64_t kEnd = 1;
constexpr int64_t kUnknown = 2;

std::filesystem::path demo_folder() { return test::demo_model() / "tokenizer_2"; }

const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = load_t5_tokenizer(demo_folder());
  return *tokenizer;
}

TokenizerFolder copy_of_demo() { return {demo_folder(), {"spiece.model"}}; }

std::vector<int64_t> used_ids(const Tokenizer& tokenizer, std::string_view text) {
  Encoding encoding = tokenizer.encode(text, 100);
  encoding.ids.resize(static_cast<size_t>(encoding.used));
  return encoding.ids;
}

TEST(T5Tokenizer, GivesTheReferencesIds) {
  EXPECT_GE(expect_cases(demo_tokenizer(), read_golden("t5.json")), 290u);
}

class T5Layouts : public ::testing::TestWithParam<const char*> {};

TEST_P(T5Layouts, GivesTheReferencesIds) {
  const nlohmann::json golden = read_golden(std::string("t5_") + GetParam() + ".json");
  const TokenizerFolder folder = copy_of_demo();
  folder.write_files(golden);
  EXPECT_GE(expect_cases(*load_t5_tokenizer(folder.path()), golden), 20u);
}
INSTANTIATE_TEST_SUITE_P(Checkpoints, T5Layouts,
                         ::testing::Values("bare", "flux1", "few_sentinels"),
                         [](const auto& layout) { return std::string(layout.param); });

TEST(T5Tokenizer, ReadsTheLengthLimit) {
  EXPECT_EQ(demo_tokenizer().model_max_length(), 24);
  EXPECT_EQ(load_t5_tokenizer(copy_of_demo().path())->model_max_length(),
            std::numeric_limits<int64_t>::max());
}

TEST(T5Tokenizer, KeepsCaseAndFoldsWhiteSpace) {
  EXPECT_NE(used_ids(demo_tokenizer(), "A CAT"), used_ids(demo_tokenizer(), "a cat"));
  EXPECT_EQ(used_ids(demo_tokenizer(), "  A \t CAT\n"), used_ids(demo_tokenizer(), "A CAT"));
}

TEST(T5Tokenizer, EndsAndPadsAnEmptyText) {
  const Encoding encoding = demo_tokenizer().encode("", 4);
  EXPECT_EQ(encoding.ids, (std::vector<int64_t>{kEnd, kPad, kPad, kPad}));
  EXPECT_EQ(encoding.used, 1);
}

TEST(T5Tokenizer, FindsSpecialTokensWrittenInTheText) {
  EXPECT_EQ(used_ids(demo_tokenizer(), "</s><pad> <unk>"),
            (std::vector<int64_t>{kEnd, kPad, kUnknown, kEnd}));
}

TEST(T5Tokenizer, JoinsCharactersThatTheModelLacks) {
  const std::vector<int64_t> ids = used_ids(demo_tokenizer(), "\xE9\x9B\xAA\xE3\x81\xAE");
  ASSERT_EQ(ids.size(), 3u);  // the mark of a word, one unknown, the end
  EXPECT_EQ(ids[1], kUnknown);
}

TEST(T5Tokenizer, NumbersSentinelsFromTheEnd) {
  const TokenizerFolder folder = copy_of_demo();
  const std::unique_ptr<Tokenizer> tokenizer = load_t5_tokenizer(folder.path());
  EXPECT_EQ(used_ids(*tokenizer, "<extra_id_99><extra_id_0>"),
            (std::vector<int64_t>{521, 620, kEnd}));
}

TEST(T5Tokenizer, KeepsTheEndWhenItCuts) {
  const Encoding encoding = demo_tokenizer().encode("an icon of a Caf\xC3\xA9  chair", 4);
  ASSERT_EQ(encoding.ids.size(), 4u);
  EXPECT_EQ(encoding.ids.back(), kEnd);
  EXPECT_EQ(encoding.used, 4);
  EXPECT_EQ(encoding.cut, "of a Caf\xC3\xA9  chair");
}

TEST(T5Tokenizer, CutsNothingWhenTheTextJustFits) {
  const Encoding whole = demo_tokenizer().encode("a red heart", 24);
  EXPECT_EQ(demo_tokenizer().encode("a red heart", whole.used).cut, "");
  EXPECT_EQ(demo_tokenizer().encode("a red heart", whole.used - 1).cut, "heart");
}

TEST(T5Tokenizer, RefusesBadArguments) {
  expect_error<InputError>([] { demo_tokenizer().encode("a\xFFz", 24); },
                           AllOf(HasSubstr("0xFF"), HasSubstr("position 1")));
  expect_error<InputError>([] { demo_tokenizer().encode("a", 0); },
                           HasSubstr("max_length must be from 1"));
}

TEST(T5Tokenizer, NamesTheFileThatItNeeds) {
  const test::TempDir empty;
  expect_error<IoError>([&] { load_t5_tokenizer(empty.path()); },
                        HasSubstr((empty / "spiece.model").string()));
  const TokenizerFolder converted(demo_folder(), {"tokenizer.json"});
  expect_error<UnsupportedError>([&] { load_t5_tokenizer(converted.path()); },
                                 AllOf(HasSubstr("spiece.model"), HasSubstr("tokenizer.json")));
}

TEST(T5Tokenizer, RefusesADamagedModel) {
  const std::string whole = test::read_bytes(demo_folder() / "spiece.model");
  const test::TempDir folder;
  const auto refuses = [&](const std::string& bytes) {
    folder.write("spiece.model", bytes);
    expect_error<ConfigError>([&] { load_t5_tokenizer(folder.path()); },
                              HasSubstr("must be a SentencePiece model"));
  };
  refuses("");
  refuses("not a model");
  refuses(whole.substr(0, whole.size() / 2));
}

TEST(T5Tokenizer, RefusesAModelOfAnotherKind) {
  // A message that is appended to another one overrides its fields: trainer_spec {model_type: 2}.
  const std::string bpe("\x12\x02\x18\x02", 4);
  const test::TempDir folder;
  folder.write("spiece.model", test::read_bytes(demo_folder() / "spiece.model") + bpe);
  expect_error<UnsupportedError>([&] { load_t5_tokenizer(folder.path()); },
                                 AllOf(HasSubstr("unigram"), HasSubstr("got 2")));
}

TEST(T5Tokenizer, RefusesAMissingSpecialToken) {
  const TokenizerFolder folder = copy_of_demo();
  folder.write("tokenizer_config.json", {{"eos_token", "<end>"}});
  expect_error<ConfigError>([&] { load_t5_tokenizer(folder.path()); },
                            AllOf(HasSubstr("eos_token"), HasSubstr("<end>")));
}

}  // namespace
}  // namespace cachedit::text
