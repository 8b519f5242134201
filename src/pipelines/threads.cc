#include <ATen/Parallel.h>

#include "base/fail.h"
#include "cachedit/pipeline.h"

namespace cachedit {

void set_num_threads(int64_t threads) {
  constexpr int64_t kMax = 4096;
  if (threads < 1 || threads > kMax) {
    fail<InputError>("threads", "must lie in 1..", kMax, ": got ", threads);
  }
  at::set_num_threads(static_cast<int>(threads));
}

}  // namespace cachedit
