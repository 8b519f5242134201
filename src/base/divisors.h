// Numbers of ranks that share something out evenly, for error texts.
#pragma once

#include <cstdint>
#include <string>

namespace cachedit {

/// The numbers from 2 that divide `count`: "2, 3, 6"; `none` where there are none.
std::string divisors_text(int64_t count, const char* none = "1");

}  // namespace cachedit
