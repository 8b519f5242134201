// Allocation failures as cachedit::OutOfMemory, whoever reports them.
#pragma once

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "base/fail.h"

namespace cachedit::pipelines {

/// Runs `work` and translates LibTorch's and the standard library's allocation failures.
template <class Work>
auto report_out_of_memory(std::string_view where, const Work& work) {
  constexpr const char* kAdvice =
      "memory is exhausted; use a smaller size, fewer images at once, --vae-tiling, or a smaller "
      "dtype";
  try {
    return work();
  } catch (const std::bad_alloc&) {
    fail<OutOfMemory>(where, kAdvice);
  } catch (const c10::OutOfMemoryError& error) {
    fail<OutOfMemory>(where, kAdvice, " (", error.what_without_backtrace(), ")");
  } catch (const c10::Error& error) {
    // The CPU allocator has no type of its own for this.
    const std::string_view text = error.what_without_backtrace();
    if (text.find("allocate memory") == std::string_view::npos) throw;
    fail<OutOfMemory>(where, kAdvice, " (", text.substr(0, text.find('\n')), ")");
  }
}

}  // namespace cachedit::pipelines
