// Seeded damage for JSON texts: bytes, numbers, tokens and nesting.
#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace cachedit::test {

class TextMutator {
 public:
  explicit TextMutator(uint64_t seed) : random_(seed) {}

  /// Uniform in [0, limit); 0 where limit is 0. The same on every standard library.
  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  /// Mostly small, else near a limit of 64 bits.
  uint64_t number();
  /// `text` with none to four damages.
  std::string mutate(std::string text);

 private:
  void damage(std::string& text);
  void damage_bytes(std::string& text);
  void replace_number(std::string& text);
  void replace_token(std::string& text);
  void copy_part(std::string& text);

  std::mt19937_64 random_;
};

}  // namespace cachedit::test
