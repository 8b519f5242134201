#include "kernels/difference.h"

#include "kernels/cpu/convert.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

/// Elements whose sums are taken in fp32 before they are added in double: the sum of 4096
/// magnitudes in 16 lanes loses no more than its last bits.
constexpr int64_t kBlock = 4096;
/// Partial sums, so that the result does not depend on the number of threads.
constexpr int64_t kMaxParts = 64;

/// Rounds to a 16-bit type and back.
CACHEDIT_INLINE F32 round_to(ElementType type, F32 v) {
  if (type == ElementType::kFloat32) return v;
  alignas(64) float stored[kLanes];  // holds kLanes elements of either size
  store_from_float(stored, type, 0, v);
  return load_as_float(stored, type, 0);
}

struct Arrays {
  ElementType type;
  const void* previous;
  const void* states;
  const void* base;
};

CACHEDIT_INLINE void add_vector(const Arrays& a, F32 previous, F32 states, F32 base, F32& change,
                                F32& magnitude) {
  const F32 current = a.base == nullptr ? states : round_to(a.type, states - base);
  change = change + abs(previous - current);
  magnitude = magnitude + abs(previous);
}

DifferenceSums sum_range(const Arrays& a, int64_t begin, int64_t end) {
  DifferenceSums sums;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = end - block < kBlock ? end : block + kBlock;
    F32 change{};
    F32 magnitude{};
    int64_t i = block;
    for (; i + kLanes <= stop; i += kLanes) {
      const F32 base = a.base == nullptr ? F32{} : load_as_float(a.base, a.type, i);
      add_vector(a, load_as_float(a.previous, a.type, i), load_as_float(a.states, a.type, i), base,
                 change, magnitude);
    }
    if (i < stop) {
      alignas(64) float previous[kLanes] = {}, states[kLanes] = {}, base[kLanes] = {};
      load_row(offset(a.previous, a.type, i), a.type, stop - i, previous);
      load_row(offset(a.states, a.type, i), a.type, stop - i, states);
      if (a.base != nullptr) load_row(offset(a.base, a.type, i), a.type, stop - i, base);
      add_vector(a, load(previous), load(states), load(base), change, magnitude);
    }
    sums.change += static_cast<double>(reduce_add(change));
    sums.magnitude += static_cast<double>(reduce_add(magnitude));
  }
  return sums;
}

struct Job {
  Arrays arrays;
  int64_t count;
  int64_t part;  ///< elements of a partial sum
  int64_t parts;
  int threads;
  DifferenceSums sums[kMaxParts];
};

}  // namespace

DifferenceSums difference_sums(ElementType type, const void* previous, const void* states,
                               const void* base, int64_t count, const Parallel& parallel) {
  Job job{.arrays = {type, previous, states, base}, .count = count, .threads = parallel.threads};
  const int64_t even = (count + kMaxParts - 1) / kMaxParts;
  job.part = (even + kBlock - 1) / kBlock * kBlock;
  job.parts = count == 0 ? 0 : (count + job.part - 1) / job.part;
  const auto task = [](void* argument, int thread) {
    auto& j = *static_cast<Job*>(argument);
    for (int64_t i = thread; i < j.parts; i += j.threads) {
      const int64_t begin = i * j.part;
      const int64_t end = j.count - begin < j.part ? j.count : begin + j.part;
      j.sums[i] = sum_range(j.arrays, begin, end);
    }
  };
  if (parallel.threads <= 1 || job.parts <= 1) {
    job.threads = 1;
    task(&job, 0);
  } else {
    parallel.run(parallel.context, task, &job);
  }
  DifferenceSums sums;
  for (int64_t i = 0; i < job.parts; ++i) {
    sums.change += job.sums[i].change;
    sums.magnitude += job.sums[i].magnitude;
  }
  return sums;
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
