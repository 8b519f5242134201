#include "text/unicode.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>

#include "base/fail.h"

namespace cachedit::text {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// The reference classifies by Unicode 16, ICU 72 by Unicode 15. What came in between is listed
// here, so that ids do not depend on the age of the installed ICU.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                 {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                 {0x1E5F1, 0x1E5FA}};

// Capitals of Unicode 16 and 17, which the reference lower-cases: a range and what to add to it.
struct CaseRange {
  char32_t first;
  char32_t last;
  int32_t to_lower;
};
constexpr CaseRange kNewCapitals[] = {{0x1C89, 0x1C89, 1},    {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
                                      {0xA7CC, 0xA7CC, 1},    {0xA7CE, 0xA7CE, 1},
                                      {0xA7D2, 0xA7D2, 1},    {0xA7D4, 0xA7D4, 1},
                                      {0xA7DA, 0xA7DA, 1},    {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
                                      {0x10D50, 0x10D65, 32}, {0x16EA0, 0x16EB8, 27}};

template <class Table>
const auto* find_range(const Table& table, char32_t code_point) {
  const auto* found = std::find_if(std::begin(table), std::end(table), [&](const auto& range) {
    return range.first <= code_point && code_point <= range.last;
  });
  return found == std::end(table) ? nullptr : found;
}

constexpr char32_t kDottedCapitalI = 0x130;
constexpr char32_t kCombiningDotAbove = 0x307;

UChar32 icu(char32_t code_point) { return static_cast<UChar32>(code_point); }

const uint8_t* bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  const uint8_t* data = bytes(text);
  const auto size = static_cast<int64_t>(text.size());
  for (int64_t i = 0; i < size;) {
    const int64_t start = i;
    UChar32 code_point;
    U8_NEXT(data, i, size, code_point);
    if (code_point < 0) return static_cast<size_t>(start);
  }
  return std::nullopt;
}

void require_utf8(std::string_view where, std::string_view text) {
  if (const auto position = find_invalid_utf8(text)) {
    static constexpr char kHex[] = "0123456789ABCDEF";
    const uint8_t byte = bytes(text)[*position];
    fail<InputError>(where, "text must be UTF-8: got the byte 0x", kHex[byte >> 4], kHex[byte & 15],
                     " at position ", *position, "; convert the text to UTF-8");
  }
}

char32_t next_code_point(std::string_view text, size_t& position) {
  UChar32 code_point;
  U8_NEXT_UNSAFE(bytes(text), position, code_point);
  return static_cast<char32_t>(code_point);
}

char32_t previous_code_point(std::string_view text, size_t& position) {
  UChar32 code_point;
  U8_PREV_UNSAFE(bytes(text), position, code_point);
  return static_cast<char32_t>(code_point);
}

void append_code_point(std::string& text, char32_t code_point) {
  char buffer[U8_MAX_LENGTH];
  size_t length = 0;
  U8_APPEND_UNSAFE(buffer, length, static_cast<uint32_t>(code_point));
  text.append(buffer, length);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

CharClass char_class(char32_t code_point) {
  if (is_space(code_point)) return CharClass::kSpace;
  const uint32_t category = U_GET_GC_MASK(icu(code_point));
  if (category & U_GC_L_MASK) return CharClass::kLetter;
  if (category & U_GC_N_MASK) return CharClass::kNumber;
  if (find_range(kNewLetters, code_point)) return CharClass::kLetter;
  if (find_range(kNewNumbers, code_point)) return CharClass::kNumber;
  return CharClass::kOther;
}

bool is_space(char32_t code_point) { return u_isUWhiteSpace(icu(code_point)); }

bool is_word(char32_t code_point) {
  constexpr uint32_t kWordCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return (U_GET_GC_MASK(icu(code_point)) & kWordCategories) != 0 ||
         u_hasBinaryProperty(icu(code_point), UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(icu(code_point), UCHAR_JOIN_CONTROL);
}

void append_lower(std::string& text, char32_t code_point) {
  if (code_point == kDottedCapitalI) {
    append_code_point(text, U'i');
    append_code_point(text, kCombiningDotAbove);
  } else if (const CaseRange* range = find_range(kNewCapitals, code_point)) {
    append_code_point(text, static_cast<char32_t>(icu(code_point) + range->to_lower));
  } else {
    append_code_point(text, static_cast<char32_t>(u_tolower(icu(code_point))));
  }
}

std::string_view trim(std::string_view text) {
  size_t begin = 0;
  for (size_t next = 0; next < text.size(); begin = next) {
    if (!is_space(next_code_point(text, next))) break;
  }
  size_t end = text.size();
  for (size_t previous = end; previous > begin; end = previous) {
    if (!is_space(previous_code_point(text, previous))) break;
  }
  return text.substr(begin, end - begin);
}

}  // namespace cachedit::text
