#include "kernels/roof.h"

#include "kernels/cpu/levels.h"

namespace cachedit::kernels {

CACHEDIT_DECLARE_LEVELS(double run_roof_loop(RoofKind kind, int64_t iterations))

namespace {

struct RoofTask {
  RoofKind kind;
  int64_t iterations;
  CpuIsa isa;
};

double run_loop(RoofKind kind, int64_t iterations, CpuIsa isa) {
  CACHEDIT_CALL_LEVEL(isa, run_roof_loop(kind, iterations));
}

}  // namespace

double run_roof(RoofKind kind, int64_t iterations, const Parallel& parallel, CpuIsa isa) {
  RoofTask task{kind, iterations, isa};
  parallel.run(
      parallel.context,
      [](void* argument, int) {
        const auto& t = *static_cast<const RoofTask*>(argument);
        run_loop(t.kind, t.iterations, t.isa);
      },
      &task);
  return run_loop(kind, 1, isa) * static_cast<double>(iterations) * parallel.threads;
}

}  // namespace cachedit::kernels
