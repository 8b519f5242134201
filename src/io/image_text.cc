#include "io/image_text.h"

#include <algorithm>
#include <cstdint>

#include "base/fail.h"

namespace cachedit::io {
namespace {

constexpr size_t kMaxKeyLength = 79;

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The length of the well-formed sequence that `text` starts with, 0 if there is none.
size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F;
  const bool beyond = lead == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 128; });
}

bool is_png_keyword(std::string_view key) {
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return !key.empty() && key.size() <= kMaxKeyLength && printable && key.front() != ' ' &&
         key.back() != ' ' && key.find("  ") == std::string_view::npos;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto code = static_cast<uint8_t>(c);
    if (code < 0x80) {
      out += c;
    } else {
      out += static_cast<char>(0xC0 | (code >> 6));
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return out;
}

std::string png_text_chunk(std::string_view key, std::string_view value, std::string_view where) {
  if (!is_png_keyword(key)) {
    fail<InputError>(where, "text key must be 1 to ", kMaxKeyLength,
                     " printable ASCII characters: got '", key, "'; rename it");
  }
  if (!is_utf8(value) || value.find('\0') != std::string_view::npos) {
    fail<InputError>(where, "text must be UTF-8 without zero bytes: got something else under '",
                     key, "'; convert it first");
  }
  std::string chunk(is_ascii(value) ? "tEXt" : "iTXt");
  chunk += key;
  chunk += '\0';
  // Not compressed (two bytes), no language, no translated key.
  if (chunk.starts_with("iTXt")) chunk.append(4, '\0');
  chunk += value;
  return chunk;
}

std::string text_lines(const std::map<std::string, std::string>& text) {
  std::string lines;
  for (const auto& [key, value] : text) lines += key + ": " + value + "\n";
  return lines;
}

}  // namespace cachedit::io
