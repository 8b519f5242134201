// Safetensors files written by hand, good and bad.
#pragma once

#include <cstdint>
#include <string>

namespace cachedit::test {

/// A length field that fits `header`, the header, the data.
inline std::string weight_file(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  bytes += header;
  return bytes + data;
}

}  // namespace cachedit::test
