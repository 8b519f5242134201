// Normalised text that remembers where each of its bytes came from, so that what a tokenizer cuts
// can be shown as the user wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit::text {

struct MappedText {
  std::string text;
  /// For each byte of `text`, the byte of the original where its character begins.
  std::vector<uint32_t> origin;

  /// Gives the bytes that were appended to `text` since the last call the same origin.
  void mark(size_t from) { origin.resize(text.size(), static_cast<uint32_t>(from)); }

  /// `original` itself.
  static MappedText identity(std::string_view original) {
    MappedText mapped{std::string(original), std::vector<uint32_t>(original.size())};
    for (size_t i = 0, start = 0; i < original.size(); ++i) {
      const bool continues = (static_cast<unsigned char>(original[i]) & 0xC0) == 0x80;
      if (!continues) start = i;
      mapped.origin[i] = static_cast<uint32_t>(start);
    }
    return mapped;
  }
};

}  // namespace cachedit::text
