#include "text/unicode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cachedit/error.h"
#include "support/expect_error.h"
#include "text/graphemes.h"
#include "text/nfc.h"

namespace cachedit::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8(std::string_view("a\0b", 3)), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("\u00E9\u96EA\U0001F34E\U0010FFFF"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("\xFF"), 0u);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2u);            // a continuation without a start
  EXPECT_EQ(find_invalid_utf8("\u00E9\xE9\x9B"), 2u);    // cut short
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1u);     // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
}

TEST(Utf8, NamesTheBadByte) {
  test::expect_error<InputError>([] { require_utf8("prompt", "caf\xE9 x"); },
                                 HasSubstr("[prompt] text must be UTF-8: got the byte 0xE9"));
}

TEST(Utf8, StepsBothWays) {
  const std::string_view text = "a\u00E9\U0001F34E";
  size_t position = 0;
  EXPECT_EQ(next_code_point(text, position), U'a');
  EXPECT_EQ(next_code_point(text, position), U'\u00E9');
  EXPECT_EQ(next_code_point(text, position), U'\U0001F34E');
  EXPECT_EQ(position, text.size());
  EXPECT_EQ(previous_code_point(text, position), U'\U0001F34E');
  EXPECT_EQ(position, 3u);
}

TEST(Unicode, TrimsAllKindsOfWhiteSpace) {
  EXPECT_EQ(trim(" \t\u3000a \u00E9\u2028\n"), "a \u00E9");
  EXPECT_EQ(trim("\u00A0 "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Unicode, ClassifiesCharacters) {
  for (const char32_t c : {U'a', U'\u00DF', U'\u96EA', U'\u02B0', U'\u01C5', U'\uA7CB'}) {
    EXPECT_EQ(char_class(c), CharClass::kLetter) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'7', U'\u00BD', U'\u2167', U'\u0663', U'\U00010D40'}) {
    EXPECT_EQ(char_class(c), CharClass::kNumber) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U' ', U'\n', U'\u0085', U'\u00A0', U'\u3000', U'\u2028'}) {
    EXPECT_EQ(char_class(c), CharClass::kSpace) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'!', U'\u0301', U'\u200B', U'\x1C', U'\0', U'\U0001F34E'}) {
    EXPECT_EQ(char_class(c), CharClass::kOther) << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, KnowsWordCharacters) {
  for (const char32_t c : {U'a', U'_', U'5', U'\u0301', U'\u200D', U'\u2167'}) {
    EXPECT_TRUE(is_word(c)) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U' ', U'-', U'\u00BD', U'\U0001F34E'}) {
    EXPECT_FALSE(is_word(c)) << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, LowersCharactersOneByOne) {
  const auto lower = [](char32_t c) {
    std::string text;
    append_lower(text, c);
    return text;
  };
  EXPECT_EQ(lower(U'A'), "a");
  EXPECT_EQ(lower(U'a'), "a");
  EXPECT_EQ(lower(U'\u00DF'), "\u00DF");
  EXPECT_EQ(lower(U'\u0130'), "i\u0307");
  EXPECT_EQ(lower(U'\u03A3'), "\u03C3");
  EXPECT_EQ(lower(U'\u01C5'), "\u01C6");
  EXPECT_EQ(lower(U'\uA7CB'), "\u0264");
  EXPECT_EQ(lower(U'\U00010D50'), "\U00010D70");
}

TEST(Graphemes, KeepMarksAndJoinedEmojiTogether) {
  EXPECT_THAT(grapheme_ends(""), ElementsAre());
  EXPECT_THAT(grapheme_ends("ae\u0301\r\nb"), ElementsAre(1, 4, 6, 7));
  EXPECT_THAT(grapheme_ends("\U0001F469\u200D\U0001F680!"), ElementsAre(11, 12));
  EXPECT_THAT(grapheme_ends("\U0001F1EB\U0001F1F7\U0001F1EB"), ElementsAre(8, 12));
}

TEST(Graphemes, KnowNewMarks) {
  EXPECT_THAT(grapheme_ends("e\u0897\u0301x"), ElementsAre(6, 7));
  EXPECT_THAT(grapheme_ends("\n\u0897"), ElementsAre(1, 4));  // nothing joins a control character
}

TEST(Nfc, ComposesAndReorders) {
  const Nfc nfc;
  EXPECT_EQ(nfc("cafe\u0301").text, "caf\u00E9");
  EXPECT_EQ(nfc("q\u0307\u0323").text, "q\u0323\u0307");
  EXPECT_EQ(nfc("\u212B \u1112\u1161\u11AB").text, "\u00C5 \uD55C");
  EXPECT_EQ(nfc("\uFB01 \u00BD").text, "\uFB01 \u00BD");  // compatibility forms stay
  EXPECT_EQ(nfc("").text, "");
}

TEST(Nfc, LeavesMarksAfterUnicode9InPlace) {
  EXPECT_EQ(Nfc()("q\u0301\u0D3B\u0316").text, "q\u0301\u0D3B\u0316");
}

TEST(Nfc, RemembersWhereTextCameFrom) {
  const MappedText mapped = Nfc()("xe\u0301\u96EAy");
  EXPECT_EQ(mapped.text, "x\u00E9\u96EAy");
  EXPECT_THAT(mapped.origin, ElementsAre(0, 1, 1, 4, 4, 4, 7));
}

}  // namespace
}  // namespace cachedit::text
