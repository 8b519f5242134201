#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "text/byte_level.h"

namespace cachedit::text {
namespace {

using test::expect_error;
using ::testing::HasSubstr;

// Letters a, b, c inside words (1..3) and at their ends (4..6), then results of merges.
Vocabulary small_vocabulary() {
  return {{"?", 0},  {"a", 1},  {"b", 2},   {"c", 3},    {"a$", 4},    {"b$", 5},   {"c$", 6},
          {"ab", 7}, {"aa", 8}, {"ab$", 9}, {"bc$", 10}, {"abab", 11}, {"abc$", 12}};
}

std::vector<int64_t> ids(const Bpe& bpe, std::string_view word) {
  std::vector<BpePiece> pieces;
  bpe.encode(word, pieces);
  std::vector<int64_t> result;
  for (const BpePiece& piece : pieces) result.push_back(piece.id);
  return result;
}

Bpe small(const Merges& merges) {
  return {"merges", small_vocabulary(), merges, {.end_of_word = "$", .unknown = "?"}};
}

TEST(Bpe, MarksTheLastByteOfAWord) {
  const Bpe bpe = small({});
  EXPECT_EQ(ids(bpe, "abc"), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(ids(bpe, "a"), (std::vector<int64_t>{4}));
  EXPECT_EQ(ids(bpe, ""), (std::vector<int64_t>{}));
}

TEST(Bpe, JoinsTheEarlierMergeFirst) {
  EXPECT_EQ(ids(small({{"b", "c$"}, {"a", "b"}}), "abc"), (std::vector<int64_t>{1, 10}));
  EXPECT_EQ(ids(small({{"a", "b"}, {"b", "c$"}}), "abc"), (std::vector<int64_t>{7, 6}));
}

TEST(Bpe, JoinsFromTheLeftAndGoesOnWithTheResult) {
  EXPECT_EQ(ids(small({{"a", "a"}}), "aaaab"), (std::vector<int64_t>{8, 8, 5}));
  EXPECT_EQ(ids(small({{"a", "a"}}), "aaab"), (std::vector<int64_t>{8, 1, 5}));
  EXPECT_EQ(ids(small({{"a", "b"}, {"ab", "ab"}, {"ab", "c$"}}), "abababc"),
            (std::vector<int64_t>{11, 12}));
}

TEST(Bpe, TellsWhereTokensBegin) {
  std::vector<BpePiece> pieces;
  small({{"a", "b"}}).encode("cabab", pieces);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[1].begin, 1u);
  EXPECT_EQ(pieces[2].begin, 3u);
  EXPECT_EQ(pieces[3].begin, 4u);
}

TEST(Bpe, TakesTheUnknownTokenForBytesThatTheVocabularyLacks) {
  EXPECT_EQ(ids(small({}), "axx"), (std::vector<int64_t>{1, 0, 0}));
}

TEST(Bpe, EncodesALongWord) {
  const std::string word(200'001, 'a');
  const std::vector<int64_t> result = ids(small({{"a", "a"}}), word);
  EXPECT_EQ(result.size(), 100'001u);
  EXPECT_EQ(result.front(), 8);
  EXPECT_EQ(result.back(), 4);
}

TEST(Bpe, RefusesMergesOfAnotherVocabulary) {
  expect_error<ConfigError>([] { small({{"x", "a"}}); }, HasSubstr("'x'"));
  expect_error<ConfigError>([] { small({{"a", "x"}}); }, HasSubstr("'x'"));
  expect_error<ConfigError>([] { small({{"c", "a"}}); }, HasSubstr("'ca'"));
  expect_error<ConfigError>(
      [] { Bpe("w", small_vocabulary(), {}, {.end_of_word = "$", .unknown = "!"}); },
      HasSubstr("[w] the unknown token"));
}

TEST(ByteLevel, GivesEachByteACharacter) {
  const auto alphabet = byte_level_alphabet();
  EXPECT_EQ(alphabet['a'], "a");
  EXPECT_EQ(alphabet[' '], "\u0120");
  EXPECT_EQ(alphabet['\n'], "\u010A");
  EXPECT_EQ(alphabet[0xE9], "\u00E9");
  EXPECT_EQ(alphabet[0xAD], "\u0143");
  EXPECT_EQ(std::set<std::string>(alphabet.begin(), alphabet.end()).size(), 256u);
}

}  // namespace
}  // namespace cachedit::text
