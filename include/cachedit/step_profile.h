// Where the time of a transformer's steps goes.
#pragma once

#include <cstdint>

namespace cachedit {

/// Sums over the calls since it was reset; what is neither is operators between them.
struct StepProfile {
  double linear_seconds = 0;     ///< linear layers, with what is fused into them
  double linear_operations = 0;  ///< 2 x rows x inputs x outputs each
  double attention_seconds = 0;
  double attention_operations = 0;  ///< 4 x batch x heads x queries x keys x head dim each
};

}  // namespace cachedit
