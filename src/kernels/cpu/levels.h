// Declares a function once per instruction level and calls the one of a level chosen at run time.
#pragma once

#include "kernels/cpu_isa.h"

#if defined(__x86_64__)
#define CACHEDIT_DECLARE_LEVELS(...) \
  namespace portable {               \
  __VA_ARGS__;                       \
  }                                  \
  namespace avx2 {                   \
  __VA_ARGS__;                       \
  }                                  \
  namespace avx2_vnni {              \
  __VA_ARGS__;                       \
  }                                  \
  namespace avx512 {                 \
  __VA_ARGS__;                       \
  }                                  \
  namespace avx512_vnni {            \
  __VA_ARGS__;                       \
  }                                  \
  namespace avx512_bf16 {            \
  __VA_ARGS__;                       \
  }

#define CACHEDIT_CALL_LEVEL(isa, ...)  \
  switch (isa) {                       \
    case CpuIsa::kAvx2:                \
      return avx2::__VA_ARGS__;        \
    case CpuIsa::kAvx2Vnni:            \
      return avx2_vnni::__VA_ARGS__;   \
    case CpuIsa::kAvx512:              \
      return avx512::__VA_ARGS__;      \
    case CpuIsa::kAvx512Vnni:          \
      return avx512_vnni::__VA_ARGS__; \
    case CpuIsa::kAvx512Bf16:          \
      return avx512_bf16::__VA_ARGS__; \
    case CpuIsa::kPortable:            \
      break;                           \
  }                                    \
  return portable::__VA_ARGS__
#else
#define CACHEDIT_DECLARE_LEVELS(...) \
  namespace portable {               \
  __VA_ARGS__;                       \
  }

#define CACHEDIT_CALL_LEVEL(isa, ...) \
  static_cast<void>(isa);             \
  return portable::__VA_ARGS__
#endif
