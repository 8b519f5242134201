// The alphabet of byte-level BPE: each of the 256 bytes has one printable character, and
// vocabularies spell their tokens with these.
#pragma once

#include <array>
#include <string>

namespace cachedit::text {

/// The character of each byte, in UTF-8. Printable bytes of Latin-1 stand for themselves; the
/// others take the code points from U+0100 on, in order.
std::array<std::string, 256> byte_level_alphabet();

}  // namespace cachedit::text
