// UTF-8 text by code points: validation, stepping, and the character properties that the
// tokenizers' regular expressions test.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace cachedit::text {

/// The byte at which `text` stops being well-formed UTF-8 (surrogates and overlong forms included).
std::optional<size_t> find_invalid_utf8(std::string_view text);

/// Throws InputError naming the byte and its position unless `text` is well-formed UTF-8.
void require_utf8(std::string_view where, std::string_view text);

/// The code point at `position`, which moves past it. `text` must be well-formed.
char32_t next_code_point(std::string_view text, size_t& position);

/// The code point that ends at `position`, which moves to its first byte.
char32_t previous_code_point(std::string_view text, size_t& position);

void append_code_point(std::string& text, char32_t code_point);

bool is_ascii(std::string_view text);

/// The classes that `\p{L}`, `\p{N}`, `\s` and the rest make of all characters.
enum class CharClass { kLetter, kNumber, kSpace, kOther };
CharClass char_class(char32_t code_point);

/// White_Space, which is also what `\s` means to the reference.
bool is_space(char32_t code_point);

/// `\w`: alphabetic, marks, decimal digits, connectors and joiners.
bool is_word(char32_t code_point);

/// Appends the lower case of one character, without looking at its neighbours: a final capital
/// sigma becomes a plain small sigma, a dotted capital I becomes i and a combining dot.
void append_lower(std::string& text, char32_t code_point);

/// `text` without white space at both ends.
std::string_view trim(std::string_view text);

}  // namespace cachedit::text
