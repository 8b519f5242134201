// Damaged weight files, shard indexes and configs for the readers of src/io, from a seeded mutator:
// one seed gives the same inputs everywhere. Shared by the unit tests and the fuzz_readers program.
#pragma once

#include <cstdint>
#include <filesystem>

namespace cachedit::test {

struct FuzzCounts {
  int64_t inputs = 0;
  int64_t accepted = 0;  ///< read without an error
  int64_t refused = 0;   ///< answered with a cachedit::Error
};

/// Feeds `runs` inputs to the readers. `scratch` is a folder for the inputs that must be files.
/// An exception that is not a cachedit::Error passes through, after the input went to stderr;
/// an accepted header that breaks its own promises throws std::logic_error.
FuzzCounts fuzz_readers(uint64_t seed, int64_t runs, const std::filesystem::path& scratch);

}  // namespace cachedit::test
