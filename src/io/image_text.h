// The texts that pictures carry: their encodings, and the chunks that hold them in PNG files.
// PNG specification, third edition, section 11.3.3.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace cachedit::io {

/// Whether `text` is well-formed UTF-8: shortest forms only, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);

std::string latin1_to_utf8(std::string_view text);

/// The type and data of a text chunk: tEXt where the value is ASCII, iTXt (uncompressed) otherwise.
/// Throws InputError unless the key is 1 to 79 printable ASCII characters without outer or double
/// spaces, and the value UTF-8 without a zero byte.
std::string png_text_chunk(std::string_view key, std::string_view value, std::string_view where);

/// One "key: value" line for each text.
std::string text_lines(const std::map<std::string, std::string>& text);

}  // namespace cachedit::io
