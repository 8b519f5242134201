#include "text/charsmap.h"

#include <algorithm>

#include "base/fail.h"
#include "text/graphemes.h"
#include "text/unicode.h"

namespace cachedit::text {
namespace {

constexpr size_t kMaxWholeCluster = 5;
// Below this code point, "\r\n" is the only cluster of several characters.
constexpr char32_t kFirstCombining = 0x300;

uint32_t read_u32(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The fields of a unit of the double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t leaf_value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::vector<size_t> character_ends(std::string_view text) {
  std::vector<size_t> ends;
  ends.reserve(text.size());
  for (size_t end = 0; end < text.size();) {
    next_code_point(text, end);
    ends.push_back(end);
  }
  return ends;
}

bool may_combine(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    if (next_code_point(text, position) >= kFirstCombining) return true;
  }
  return text.find("\r\n") != std::string_view::npos;
}

}  // namespace

Charsmap::Charsmap(std::string_view where, std::string_view blob) {
  if (blob.empty()) return;
  const uint32_t trie_bytes = blob.size() < 4 ? 0 : read_u32(blob);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size() - 4) {
    fail<ConfigError>(where, "the character map must hold its trie: got ", blob.size(),
                      " bytes for a trie of ", trie_bytes, "; restore the file");
  }
  trie_.reserve(trie_bytes / 4);
  for (size_t i = 4; i < 4 + size_t{trie_bytes}; i += 4) {
    trie_.push_back(read_u32(blob.substr(i)));
  }
  forms_ = blob.substr(4 + size_t{trie_bytes});
  if (find_invalid_utf8(forms_)) {
    fail<ConfigError>(where, "the character map must map to UTF-8: got other bytes",
                      "; restore the file");
  }
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  if (trie_.empty()) return std::nullopt;
  uint32_t node = offset(trie_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= trie_.size() || label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= trie_.size()) break;
    const uint32_t form = leaf_value(trie_[node]);
    if (form >= forms_.size() || continues_character(forms_[form])) break;
    const size_t end = std::min(forms_.find('\0', form), forms_.size());
    return std::string_view(forms_).substr(form, end - form);
  }
  return std::nullopt;
}

MappedText Charsmap::normalize(std::string_view text) const {
  if (trie_.empty()) return MappedText::identity(text);
  MappedText result;
  result.text.reserve(text.size());
  const auto append = [&](std::string_view form, size_t origin) {
    result.text += form;
    result.mark(origin);
  };
  const auto ends = may_combine(text) ? grapheme_ends(text) : character_ends(text);
  size_t begin = 0;
  for (const size_t end : ends) {
    const std::string_view cluster = text.substr(begin, end - begin);
    const auto whole = cluster.size() <= kMaxWholeCluster ? find(cluster) : std::nullopt;
    if (whole) {
      append(*whole, begin);
    } else {
      for (size_t position = 0; position < cluster.size();) {
        const size_t start = position;
        next_code_point(cluster, position);
        const std::string_view character = cluster.substr(start, position - start);
        append(find(character).value_or(character), begin + start);
      }
    }
    begin = end;
  }
  return result;
}

}  // namespace cachedit::text
