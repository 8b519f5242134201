#include "base/nearest_name.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace cachedit {
namespace {

char folded(char c) {
  const char lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower == '-' ? '_' : lower;
}

size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (folded(a[i - 1]) == folded(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

constexpr size_t kLongest = 80;  // no name is longer, and a file may hold anything

}  // namespace

std::string nearest_name(std::string_view got, const std::vector<std::string>& names) {
  const std::string_view start = got.substr(0, kLongest);
  return *std::min_element(names.begin(), names.end(),
                           [&](const std::string& a, const std::string& b) {
                             return edits(start, a) < edits(start, b);
                           });
}

std::optional<std::string> likely_name(std::string_view got,
                                       const std::vector<std::string>& names) {
  if (got.empty()) return std::nullopt;
  for (const std::string& name : names) {
    if (name.size() >= got.size() && edits(got, name.substr(0, got.size())) == 0) return name;
  }
  const std::string nearest = nearest_name(got, names);
  if (2 * edits(got.substr(0, kLongest), nearest) > got.size()) return std::nullopt;
  return nearest;
}

}  // namespace cachedit
