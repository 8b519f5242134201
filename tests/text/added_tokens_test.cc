#include "text/added_tokens.h"

#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>

namespace cachedit::text {
namespace {

// Spans as text: plain ones as they are, tokens as <id:text>.
std::string show(const AddedTokenFinder& finder, const std::string& text) {
  std::string result;
  size_t expected = 0;
  for (const TextSpan& span : finder.split(text)) {
    EXPECT_EQ(span.begin, expected);
    EXPECT_LT(span.begin, span.end);
    expected = span.end;
    const std::string part = text.substr(span.begin, span.end - span.begin);
    result += span.id ? c10::str("<", *span.id, ":", part, ">") : c10::str("(", part, ")");
  }
  EXPECT_EQ(expected, text.size());
  return result;
}

TEST(AddedTokens, CutTextAtTokens) {
  const AddedTokenFinder finder({{.content = "</s>", .id = 1}, {.content = "", .id = 9}});
  EXPECT_EQ(show(finder, ""), "");
  EXPECT_EQ(show(finder, "a cat"), "(a cat)");
  EXPECT_EQ(show(finder, "a</s> b</s>"), "(a)<1:</s>>( b)<1:</s>>");
  EXPECT_EQ(show(finder, "</s></s></s"), "<1:</s>><1:</s>>(</s)");
}

TEST(AddedTokens, PreferTheLongestAtAPlace) {
  const AddedTokenFinder finder(
      {{.content = "ab", .id = 1}, {.content = "abc", .id = 2}, {.content = "bcd", .id = 3}});
  EXPECT_EQ(show(finder, "abcd"), "<2:abc>(d)");
  EXPECT_EQ(show(finder, "abbcd"), "<1:ab><3:bcd>");
}

TEST(AddedTokens, SwallowWhiteSpaceOnEitherSide) {
  const AddedTokenFinder left({{.content = "#", .id = 1, .lstrip = true}});
  EXPECT_EQ(show(left, "a \u3000# b"), "(a)<1: \u3000#>( b)");
  const AddedTokenFinder right({{.content = "#", .id = 1, .rstrip = true}});
  EXPECT_EQ(show(right, "a # \t\u00A0b"), "(a )<1:# \t\u00A0>(b)");
  const AddedTokenFinder both({{.content = "#", .id = 1, .lstrip = true, .rstrip = true}});
  EXPECT_EQ(show(both, "a #  # b"), "(a)<1: #  ><1:# >(b)");
}

TEST(AddedTokens, MayNeedToStandAlone) {
  const AddedTokenFinder finder({{.content = "cat", .id = 1, .single_word = true}});
  EXPECT_EQ(show(finder, "cat concat cats _cat"), "<1:cat>( concat cats _cat)");
  EXPECT_EQ(show(finder, "(cat)cat\u0301"), "(()<1:cat>()cat\u0301)");
  EXPECT_EQ(show(finder, "\u96EAcat cat\u3000"), "(\u96EAcat )<1:cat>(\u3000)");
}

}  // namespace
}  // namespace cachedit::text
