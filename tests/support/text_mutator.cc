#include "support/text_mutator.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace cachedit::test {
namespace {

/// Values that break careless readers.
const char* const kTokens[] = {"null",
                               "true",
                               "[]",
                               "{}",
                               "\"x\"",
                               "-1",
                               "0.5",
                               "1e999",
                               "-0",
                               "1e18",
                               "\"\\u0000\"",
                               "\"\\ud800\"",
                               "NaN",
                               "[1]",
                               "{\"a\":1}",
                               "\"../s1.safetensors\"",
                               "\"/etc/passwd\"",
                               "\"F32\"",
                               "\"F4\"",
                               "\"\"",
                               "2.0",
                               "\"data_offsets\"",
                               "\"dtype\"",
                               "\"shape\"",
                               "\"__metadata__\"",
                               "\"weight_map\"",
                               "-9223372036854775808"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Where numbers start, and where values and keys start.
std::vector<size_t> number_starts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 1; i < text.size(); ++i) {
    if (is_digit(text[i]) && (text[i - 1] == '[' || text[i - 1] == ',' || text[i - 1] == ':')) {
      starts.push_back(i);
    }
  }
  return starts;
}

std::vector<size_t> token_starts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 1; i < text.size(); ++i) {
    const char before = text[i - 1];
    if (before == '[' || before == ',' || before == ':' || before == '{') starts.push_back(i);
  }
  return starts;
}

}  // namespace

uint64_t TextMutator::number() {
  const uint64_t limits[] = {
      uint64_t{1} << 31, uint64_t{1} << 32, uint64_t{1} << 62, uint64_t{1} << 63, 0, 100u << 20};
  if (below(2) == 0) return below(64);
  return limits[below(std::size(limits))] + below(5) - 2;
}

void TextMutator::damage_bytes(std::string& text) {
  const size_t at = below(text.size());
  switch (below(5)) {
    case 0:
      text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:
      text[at] = static_cast<char>(below(256));
      break;
    case 2:
      text.insert(at, 1, static_cast<char>(below(256)));
      break;
    case 3:
      text.erase(at, 1 + below(8));
      break;
    default:
      text.resize(at);
  }
}

void TextMutator::replace_number(std::string& text) {
  const std::vector<size_t> starts = number_starts(text);
  if (starts.empty()) return;
  const size_t start = starts[below(starts.size())];
  size_t end = start;
  while (end < text.size() && is_digit(text[end])) ++end;
  text.replace(start, end - start, std::to_string(number()));
}

void TextMutator::replace_token(std::string& text) {
  const std::vector<size_t> starts = token_starts(text);
  if (starts.empty()) return;
  const size_t start = starts[below(starts.size())];
  const size_t end = std::min(text.find_first_of(",:]}", start), text.size());
  text.replace(start, end - start, kTokens[below(std::size(kTokens))]);
}

/// Doubled parts give duplicate keys and overlapping ranges.
void TextMutator::copy_part(std::string& text) {
  const std::vector<size_t> starts = token_starts(text);
  if (starts.empty()) return;
  const size_t start = starts[below(starts.size())];
  const size_t end = std::min(text.find_first_of("}]", start), text.size());
  const std::string part = text.substr(start, end - start + 1) + ",";
  text.insert(starts[below(starts.size())], part);
}

void TextMutator::damage(std::string& text) {
  if (text.empty()) return;
  switch (below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return damage_bytes(text);
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
      return replace_number(text);
    case 9:
    case 10:
    case 11:
    case 12:
      return replace_token(text);
    case 13:
    case 14:
      return copy_part(text);
    default:
      text.insert(below(text.size()), 1 + below(150), below(2) == 0 ? '[' : ' ');
  }
}

std::string TextMutator::mutate(std::string text) {
  for (size_t left = below(5); left > 0; --left) damage(text);
  return text;
}

}  // namespace cachedit::test
