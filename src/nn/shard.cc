#include "nn/shard.h"

namespace cachedit::nn {

std::string divisors_text(int64_t count) {
  std::string text;
  for (int64_t size = 2; size <= count; ++size) {
    if (count % size == 0) text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return text.empty() ? "1" : text;
}

}  // namespace cachedit::nn
