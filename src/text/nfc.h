// Canonical composition (NFC) of UTF-8 text, with the way back to the original bytes.
#pragma once

#include <memory>
#include <string_view>

#include "text/mapped_text.h"

namespace cachedit::text {

class Nfc {
 public:
  Nfc();
  ~Nfc();
  Nfc(const Nfc&) = delete;
  Nfc& operator=(const Nfc&) = delete;

  /// `text` must be well-formed UTF-8.
  MappedText operator()(std::string_view text) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cachedit::text
