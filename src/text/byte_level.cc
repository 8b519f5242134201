#include "text/byte_level.h"

#include "text/unicode.h"

namespace cachedit::text {

std::array<std::string, 256> byte_level_alphabet() {
  std::array<std::string, 256> alphabet;
  char32_t substitute = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    append_code_point(alphabet[byte], printable ? byte : substitute++);
  }
  return alphabet;
}

}  // namespace cachedit::text
