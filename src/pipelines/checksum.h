// A checksum that tells inputs of different ranks apart; not for security.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachedit::pipelines {

inline constexpr uint64_t kChecksumStart = 14695981039346656037ull;

/// FNV-1a, 64 bits, continued from `hash`.
inline uint64_t checksum(const void* data, size_t bytes, uint64_t hash = kChecksumStart) {
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
  }
  return hash;
}

}  // namespace cachedit::pipelines
