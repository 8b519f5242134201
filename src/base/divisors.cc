#include "base/divisors.h"

namespace cachedit {

std::string divisors_text(int64_t count, const char* none) {
  std::string text;
  for (int64_t size = 2; size <= count; ++size) {
    if (count % size == 0) text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return text.empty() ? none : text;
}

}  // namespace cachedit
