// The only file that is compiled with OpenMP: at::parallel_for would run serially everywhere else.
#include <omp.h>

#include <cstdint>

#include "base/cpu.h"

namespace cachedit {
namespace {

/// `context` is the number of threads.
void run_openmp(void* context, kernels::Parallel::Task task, void* argument) {
  const auto threads = static_cast<int>(reinterpret_cast<intptr_t>(context));
  // The runtime may give fewer threads than asked for.
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int i = omp_get_thread_num(); i < threads; i += omp_get_num_threads()) task(argument, i);
}

}  // namespace

kernels::Parallel cpu_threads() {
  // at::set_num_threads sets OpenMP's number, at::get_num_threads returns it.
  const int threads = omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
  return {.threads = threads,
          .context = reinterpret_cast<void*>(static_cast<intptr_t>(threads)),
          .run = run_openmp};
}

}  // namespace cachedit
