// The known name that a misspelt one probably meant, for error texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cachedit {

/// The name with the fewest changed, added and dropped letters, the first of equals. `names` is not
/// empty.
std::string nearest_name(std::string_view got, const std::vector<std::string>& names);

/// The name that begins with `got`, else nearest_name() if that changes no more than half of the
/// letters; none: it was meant for something else.
std::optional<std::string> likely_name(std::string_view got, const std::vector<std::string>& names);

}  // namespace cachedit
