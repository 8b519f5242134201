// Grapheme clusters: what a reader takes for one character, such as a letter with its accents.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace cachedit::text {

/// Where the extended grapheme clusters of `text` (well-formed UTF-8) end, in bytes; empty for an
/// empty text.
std::vector<size_t> grapheme_ends(std::string_view text);

}  // namespace cachedit::text
