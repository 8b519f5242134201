#include "text/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace cachedit::text {
namespace {

using test::expect_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

const TokenizerDefaults kDefaults{.class_name = "T5Tokenizer", .named = {{"eos_token", "</s>"}}};

const AddedToken* find(const TokenizerConfig& config, const std::string& content) {
  for (const AddedToken& token : config.added) {
    if (token.content == content) return &token;
  }
  return nullptr;
}

TEST(TokenizerConfig, TakesDefaultsWithoutFiles) {
  const test::TempDir folder;
  const TokenizerConfig config = read_tokenizer_config(folder.path(), kDefaults);
  EXPECT_EQ(config.named.at("eos_token"), "</s>");
  ASSERT_EQ(config.added.size(), 1u);
  EXPECT_FALSE(config.added[0].normalized);
  EXPECT_FALSE(config.extra_ids);
}

TEST(TokenizerConfig, PrefersTheTableOfAddedTokens) {
  const test::TempDir folder;
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>", "added_tokens_decoder":
      {"1": {"content": "</s>", "lstrip": true, "special": true}}})");
  folder.write("special_tokens_map.json", R"({"eos_token": "<other>"})");
  const TokenizerConfig config = read_tokenizer_config(folder.path(), kDefaults);
  EXPECT_EQ(config.named.at("eos_token"), "</s>");
  ASSERT_NE(find(config, "</s>"), nullptr);
  EXPECT_TRUE(find(config, "</s>")->lstrip);
  EXPECT_EQ(find(config, "</s>")->id, 1);
}

TEST(TokenizerConfig, ReadsOlderFilesWithoutThatTable) {
  const test::TempDir folder;
  folder.write("special_tokens_map.json", R"({"eos_token": {"content": "<end>", "rstrip": true}})");
  folder.write("added_tokens.json", R"({"<new>": 7})");
  folder.write("tokenizer.json", R"({"added_tokens": [{"id": 8, "content": "<newer>",
      "single_word": true, "normalized": true, "special": false}]})");
  const TokenizerConfig config = read_tokenizer_config(folder.path(), kDefaults);
  EXPECT_EQ(config.named.at("eos_token"), "<end>");
  EXPECT_TRUE(find(config, "<end>")->rstrip);
  EXPECT_TRUE(find(config, "<new>")->normalized);
  EXPECT_EQ(find(config, "<new>")->id, 7);
  EXPECT_TRUE(find(config, "<newer>")->single_word);
}

TEST(TokenizerConfig, RefusesWhatWouldChangeTheIds) {
  const test::TempDir folder;
  const auto refuses = [&](const char* text, const char* key) {
    folder.write("tokenizer_config.json", text);
    expect_error<UnsupportedError>([&] { read_tokenizer_config(folder.path(), kDefaults); },
                                   AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(key)));
  };
  refuses(R"({"padding_side": "left"})", "padding_side");
  refuses(R"({"truncation_side": "left"})", "truncation_side");
  refuses(R"({"split_special_tokens": true})", "split_special_tokens");
  refuses(R"({"do_lower_case": false})", "do_lower_case");
}

TEST(TokenizerConfig, RefusesMalformedValues) {
  const test::TempDir folder;
  const auto refuses = [&](const char* text, const char* key) {
    folder.write("tokenizer_config.json", text);
    expect_error<ConfigError>([&] { read_tokenizer_config(folder.path(), kDefaults); },
                              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr(key)));
  };
  refuses("[]", "object");
  refuses(R"({"tokenizer_class": "LlamaTokenizer"})", "LlamaTokenizer");
  refuses(R"({"model_max_length": "24"})", "model_max_length");
  refuses(R"({"model_max_length": 0})", "model_max_length");
  refuses(R"({"extra_ids": -1})", "extra_ids");
  refuses(R"({"eos_token": 1})", "eos_token");
  refuses(R"({"eos_token": {"content": "x", "lstrip": 1}})", "lstrip");
  refuses(R"({"extra_special_tokens": "x"})", "extra_special_tokens");
  refuses(R"({"added_tokens_decoder": []})", "added_tokens_decoder");
  refuses(R"({"added_tokens_decoder": {"one": {"content": "x"}}})", "one");
  refuses(R"({"added_tokens_decoder": {"1": {}}})", "added_tokens_decoder");
}

TEST(TokenizerConfig, NumbersTokensThatTheVocabularyLacks) {
  TokenizerConfig config{.where = "w",
                         .named = kDefaults.named,
                         .added = {{.content = "</s>"}, {.content = "<a>"}, {.content = "<b>"}}};
  const auto find_id = [](const std::string& token) -> std::optional<int64_t> {
    return token == "</s>" ? std::optional<int64_t>(1) : std::nullopt;
  };
  resolve_ids(config, kDefaults, 10, find_id);
  EXPECT_EQ(config.added[0].id, 1);
  EXPECT_EQ(config.added[1].id, 10);
  EXPECT_EQ(config.added[2].id, 11);
  config.added[2].id = 12;
  expect_error<ConfigError>([&] { resolve_ids(config, kDefaults, 10, find_id); },
                            AllOf(HasSubstr("'<b>' must be 11"), HasSubstr("got 12")));
}

}  // namespace
}  // namespace cachedit::text
