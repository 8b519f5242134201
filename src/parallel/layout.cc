#include "parallel/layout.h"

#include <utility>

namespace cachedit::parallel {

std::string to_string(const Layout& layout) {
  std::string text;
  for (const auto& [name, size] :
       {std::pair{"cfg", layout.cfg}, std::pair{"ring", layout.ring},
        std::pair{"ulysses", layout.ulysses}, std::pair{"tp", layout.tp}}) {
    if (size == 1) continue;
    text += std::string(text.empty() ? "" : " x ") + name + " " + std::to_string(size);
  }
  return text.empty() ? "single" : text;
}

}  // namespace cachedit::parallel
