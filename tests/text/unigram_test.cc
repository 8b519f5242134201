#include "text/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "text/charsmap.h"

namespace cachedit::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> ids(const Unigram& unigram, std::string_view word) {
  std::vector<UnigramPiece> pieces;
  unigram.encode(word, pieces);
  std::vector<int64_t> result;
  for (const UnigramPiece& piece : pieces) result.push_back(piece.id);
  return result;
}

Unigram small() {
  return {{{"<unk>", 0}, {"a", -2}, {"b", -2}, {"ab", -3}, {"aab", -6.5}, {"\u00E9", -1}}, 0};
}

TEST(Unigram, TakesTheSplitOfTheGreatestTotal) {
  EXPECT_THAT(ids(small(), "ab"), ElementsAre(3));      // -3 against -4
  EXPECT_THAT(ids(small(), "aab"), ElementsAre(1, 3));  // -5 against -6.5 and -6
  EXPECT_THAT(ids(small(), "ba"), ElementsAre(2, 1));
  EXPECT_THAT(ids(small(), ""), ElementsAre());
}

TEST(Unigram, KeepsTheFirstOfEqualSplits) {
  const Unigram unigram({{"<unk>", 0}, {"x", -1}, {"xx", -2}}, 0);
  EXPECT_THAT(ids(unigram, "xxx"), ElementsAre(1, 2));
}

TEST(Unigram, SumsInDoublePrecision) {
  // In single precision both splits would total -16777216, and the first one would stay.
  const Unigram unigram({{"<unk>", 0}, {"p", -16777216}, {"a", -0.25}, {"b", -0.25}, {"ab", -0.75}},
                        0);
  EXPECT_THAT(ids(unigram, "pab"), ElementsAre(1, 2, 3));
}

TEST(Unigram, JoinsUnknownCharacters) {
  std::vector<UnigramPiece> pieces;
  small().encode("a\u96EA\u96EBb\u96EA", pieces);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[1].id, 0);
  EXPECT_EQ(pieces[1].begin, 1u);
  EXPECT_EQ(pieces[2].begin, 7u);
  EXPECT_EQ(pieces[3].id, 0);
}

TEST(Unigram, NeverJoinsTheUnknownsOfTwoWords) {
  std::vector<UnigramPiece> pieces;
  small().encode("?", pieces);
  small().encode("?", pieces);
  EXPECT_EQ(pieces.size(), 2u);
}

TEST(Unigram, FindsTheLaterOfTwoEqualPieces) {
  EXPECT_EQ(Unigram({{"a", -1}, {"a", -2}}, 0).find("a"), 1);
  EXPECT_EQ(small().find("zz"), -1);
}

TEST(Charsmap, ChangesNothingWithoutAMap) {
  const MappedText mapped = Charsmap("w", "").normalize("\uFF21e\u0301");
  EXPECT_EQ(mapped.text, "\uFF21e\u0301");
  EXPECT_THAT(mapped.origin, ElementsAre(0, 0, 0, 3, 4, 4));
}

TEST(Charsmap, RefusesADamagedMap) {
  const auto refuses = [](std::string_view blob) {
    test::expect_error<ConfigError>([&] { Charsmap("w", blob); }, HasSubstr("[w] the character"));
  };
  refuses("abc");                                             // no room for a size
  refuses(std::string_view("\0\0\0\0", 4));                   // an empty trie
  refuses(std::string_view("\x08\0\0\0\0\0\0\0", 8));         // a trie beyond the end
  refuses(std::string_view("\x04\0\0\0\0\0\0\0\xFF\0", 10));  // a form that is not UTF-8
}

TEST(Charsmap, StaysInsideADamagedTrie) {
  // The root's offset points past the end.
  const Charsmap charsmap("w", std::string_view("\x04\0\0\0\0\xFC\xFF\xFF", 8));
  EXPECT_EQ(charsmap.normalize("abc").text, "abc");
}

}  // namespace
}  // namespace cachedit::text
