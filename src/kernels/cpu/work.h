// What kernels of every kind need around their arithmetic: pieces of scratch memory, and items of
// work spread over threads. Included only by *.isa.cc files.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/parallel.h"

namespace cachedit::kernels::CACHEDIT_ISA {

CACHEDIT_INLINE int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Hands out consecutive 64-byte aligned pieces; with base null it only counts.
struct Carver {
  char* base = nullptr;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    T* piece = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
};

/// Spreads items over threads, one at a time, and returns when all are done.
template <class Item>
inline void for_each_item(const Parallel& parallel, int64_t count, const Item& item) {
  struct Shared {
    const Item* item;
    int64_t count;
    int64_t next;
  } shared{&item, count, 0};
  const auto task = [](void* argument, int thread) {
    auto& s = *static_cast<Shared*>(argument);
    for (;;) {
      const int64_t i = __atomic_fetch_add(&s.next, 1, __ATOMIC_RELAXED);
      if (i >= s.count) return;
      (*s.item)(i, thread);
    }
  };
  if (parallel.threads <= 1 || count <= 1) {
    task(&shared, 0);
  } else {
    parallel.run(parallel.context, task, &shared);
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
