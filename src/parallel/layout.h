// How many ranks do what: the sizes of a parallel layout, and their product.
#pragma once

#include <cstdint>
#include <string>

namespace cachedit::parallel {

/// Ranks are numbered with `tp` running fastest, then `ulysses`, `ring` and `cfg`: neighbours talk
/// most.
struct Layout {
  int64_t cfg = 1;      ///< groups that share the guidance branches out, 1 or 2
  int64_t ring = 1;     ///< ranks that pass keys and values on
  int64_t ulysses = 1;  ///< ranks that exchange heads for tokens
  int64_t tp = 1;       ///< ranks that share the weights out

  int64_t world() const { return cfg * ring * ulysses * tp; }
  /// Parts of the token sequence.
  int64_t sequence() const { return ring * ulysses; }
  bool operator==(const Layout&) const = default;
};

/// "ulysses 2 x tp 2"; "single" for one rank.
std::string to_string(const Layout& layout);

}  // namespace cachedit::parallel
