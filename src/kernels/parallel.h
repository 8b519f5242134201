// How a kernel asks its caller for threads, so that kernels need no threading library.
#pragma once

namespace cachedit::kernels {

/// `run(context, task, argument)` calls task(argument, i) once for each i in [0, threads), as far
/// as possible at the same time, and returns when all have returned. Tasks never wait for each
/// other.
struct Parallel {
  using Task = void (*)(void* argument, int thread);
  int threads = 1;
  void* context = nullptr;
  void (*run)(void* context, Task task, void* argument) = nullptr;
};

}  // namespace cachedit::kernels
