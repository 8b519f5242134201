// Throwing the errors of cachedit/error.h with texts of one form.
#pragma once

#include <c10/util/StringUtil.h>

#include <string_view>

#include "cachedit/error.h"

namespace cachedit {

/// Throws ErrorType with the text "[where] parts...". `parts` are streamed one after the other and
/// should read "rule: got value; what to do".
template <class ErrorType, class... Parts>
[[noreturn]] void fail(std::string_view where, const Parts&... parts) {
  throw ErrorType(c10::str("[", where, "] ", parts...));
}

}  // namespace cachedit
