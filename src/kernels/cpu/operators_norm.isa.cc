// Layer norm with the modulation of an adaptive norm, a row at a time while it is in L1.
#include "kernels/cpu/operators_rows.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

/// Normalized: (x - center) * factor + offset.
struct RowStatistics {
  float center;
  float factor;
  float offset;
};

template <class X>
CACHEDIT_INLINE RowStatistics row_statistics(const void* x, int64_t columns, float eps) {
  const auto count = static_cast<float>(columns);
  F32 sums[kSlots] = {};
  int64_t i = full_vectors(
      columns, [&](int64_t at, int slot)
                   __attribute__((always_inline)) { sums[slot] = sums[slot] + X::load(x, at); });
  if (i < columns) sums[1] = sums[1] + X::load_tail(x, i, columns - i);
  const float center = reduce_slots(sums) / count;

  F32 rest[kSlots] = {};
  F32 squares[kSlots] = {};
  const auto add = [&](F32 difference, int slot) __attribute__((always_inline)) {
    rest[slot] = rest[slot] + difference;
    squares[slot] = fma(difference, difference, squares[slot]);
  };
  i = full_vectors(
      columns, [&](int64_t at, int slot)
                   __attribute__((always_inline)) { add(X::load(x, at) - center, slot); });
  if (i < columns) {
    add(first_lanes(X::load_tail(x, i, columns - i) - center, columns - i), 1);
  }
  const float correction = reduce_slots(rest) / count;
  const float variance = reduce_slots(squares) / count - correction * correction;
  // Rounding may leave a constant row's variance below zero; NaN passes.
  const float factor = 1.0f / __builtin_sqrtf((variance < 0 ? 0.0f : variance) + eps);
  return {center, factor, -correction * factor};
}

template <class X, class V>
void normalize_row(const LayerNormProblem& p, const void* x, void* out, const void* scale,
                   const void* shift) {
  const int64_t columns = p.columns;
  const RowStatistics s = row_statistics<X>(x, columns, p.eps);
  const F32 factor = splat(s.factor), offset = splat(s.offset), one = splat(p.scale_offset);
  const auto finish = [&](F32 v, F32 by, F32 plus) __attribute__((always_inline)) {
    return fma(fma(v - s.center, factor, offset), one + by, plus);
  };
  const int64_t i = full_vectors(
      columns, [&](int64_t at, int) __attribute__((always_inline)) {
        X::store(out, at, finish(X::load(x, at), V::load(scale, at), V::load(shift, at)));
      });
  if (i == columns) return;
  const int64_t left = columns - i;
  X::store_tail(
      out, i, left,
      finish(X::load_tail(x, i, left), V::load_tail(scale, i, left), V::load_tail(shift, i, left)));
}

}  // namespace

void layer_norm(const LayerNormProblem& p, const Parallel& parallel) {
  using NormalizeRow = void (*)(const LayerNormProblem& p, const void* x, void* out,
                                const void* scale, const void* shift);
  NormalizeRow run = nullptr;
  with_types(p.type, p.vector_type, [&]<class X, class V>(X, V) { run = normalize_row<X, V>; });
  for_each_row(parallel, p.batch * p.rows, p.columns * element_size(p.type), [&](int64_t i) {
    const int64_t item = i / p.rows;
    run(p, offset(p.x, p.type, row_offset(p.x_strides, p.rows, i)),
        offset(p.out, p.type, row_offset(p.out_strides, p.rows, i)),
        offset(p.scale.data, p.vector_type, item * p.scale.stride_batch),
        offset(p.shift.data, p.vector_type, item * p.shift.stride_batch));
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
