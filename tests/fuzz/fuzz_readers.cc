// Feeds damaged weight files, indexes and configs to the readers: fuzz_readers [--runs N] [--seed
// S]. Anything but a clean result or a cachedit::Error ends the program abnormally.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cachedit/log.h"
#include "support/reader_fuzz.h"
#include "support/temp_dir.h"

int main(int argc, char** argv) {
  unsigned long long runs = 200000, seed = 1;
  for (int i = 1; i < argc; i += 2) {
    char* end = nullptr;
    const unsigned long long value = i + 1 < argc ? std::strtoull(argv[i + 1], &end, 10) : 0;
    const bool good = end != nullptr && *end == '\0' && end != argv[i + 1];
    if (good && std::strcmp(argv[i], "--runs") == 0) {
      runs = value;
    } else if (good && std::strcmp(argv[i], "--seed") == 0) {
      seed = value;
    } else {
      std::fprintf(stderr, "usage: fuzz_readers [--runs N] [--seed S]\n");
      return 2;
    }
  }
  // Left-out tensors of a damaged index are worth a warning to a user, not 10,000 of them here.
  cachedit::set_log_level(cachedit::LogLevel::kError);
  const cachedit::test::TempDir scratch;
  const auto counts =
      cachedit::test::fuzz_readers(seed, static_cast<int64_t>(runs), scratch.path());
  std::printf("fuzz_readers: seed %llu, %lld inputs: %lld accepted, %lld refused, 0 crashes\n",
              seed, static_cast<long long>(counts.inputs), static_cast<long long>(counts.accepted),
              static_cast<long long>(counts.refused));
  return 0;
}
