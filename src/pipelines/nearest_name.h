// The known name that a misspelt one probably meant, for error texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cachedit::pipelines {

/// The name with the fewest changed, added and dropped letters, the first of equals. `names` is not
/// empty.
std::string nearest_name(std::string_view got, const std::vector<std::string>& names);

}  // namespace cachedit::pipelines
