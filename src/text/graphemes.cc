#include "text/graphemes.h"

#include <unicode/brkiter.h>
#include <unicode/localpointer.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>

#include "base/fail.h"
#include "text/unicode.h"

namespace cachedit::text {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Marks of Unicode 16 and 17, which the reference attaches and ICU 72 does not know yet.
constexpr Range kNewMarks[] = {
    {0x897, 0x897},     {0x1ACF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x10D69, 0x10D6D},
    {0x10EFA, 0x10EFC}, {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
    {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2}, {0x113E1, 0x113E2},
    {0x11B60, 0x11B67}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F}, {0x1E5EE, 0x1E5EF},
    {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5}};

bool is_new_mark(char32_t code_point) {
  return std::any_of(std::begin(kNewMarks), std::end(kNewMarks), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.last;
  });
}

bool takes_marks(char32_t code_point) {
  const int32_t kind =
      u_getIntPropertyValue(static_cast<UChar32>(code_point), UCHAR_GRAPHEME_CLUSTER_BREAK);
  return kind != U_GCB_CONTROL && kind != U_GCB_CR && kind != U_GCB_LF;
}

// Whether the cluster goes on where ICU ends it.
bool continues(std::string_view text, size_t end) {
  if (end == text.size()) return false;
  size_t before = end;
  size_t after = end;
  return is_new_mark(next_code_point(text, after)) &&
         takes_marks(previous_code_point(text, before));
}

void check_icu(UErrorCode status) {
  if (U_FAILURE(status)) {
    fail<UnsupportedError>("text", "ICU cannot split text into characters: got ",
                           u_errorName(status), "; install ICU's data files");
  }
}

}  // namespace

std::vector<size_t> grapheme_ends(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  // An iterator keeps a position, hence one for each call.
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  check_icu(status);
  const icu::LocalUTextPointer input(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  check_icu(status);
  breaks->setText(input.getAlias(), status);
  check_icu(status);
  std::vector<size_t> ends;
  for (int32_t end = breaks->next(); end != icu::BreakIterator::DONE; end = breaks->next()) {
    const auto position = static_cast<size_t>(end);
    if (!continues(text, position)) ends.push_back(position);
  }
  return ends;
}

}  // namespace cachedit::text
