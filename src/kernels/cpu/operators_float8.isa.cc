// Rows of activations as e4m3 with dynamic scales holds them, for float8 products on CPUs.
#include "kernels/cpu/low_bit.h"
#include "kernels/cpu/operators_rows.h"

namespace cachedit::kernels::CACHEDIT_ISA {
namespace {

/// Largest magnitude of `count` elements; NaN if one is NaN or infinite, so that none of those
/// which share its scale stays an ordinary number.
template <class X>
float largest_of(int64_t count, const void* x) {
  F32 largest[kSlots] = {}, poison[kSlots] = {};
  const auto look_at = [&](F32 v, int slot) __attribute__((always_inline)) {
    largest[slot] = max(largest[slot], abs(v));
    poison[slot] = fma(v, F32{}, poison[slot]);
  };
  const int64_t i = full_vectors(
      count, [&](int64_t at, int slot)
                 __attribute__((always_inline)) { look_at(X::load(x, at), slot); });
  if (i < count) look_at(X::load_tail(x, i, count - i), 0);
  const F32 all = max(max(largest[0], largest[1]), max(largest[2], largest[3]));
  return reduce_max(all) + reduce_slots(poison);
}

template <class X>
void round_with(int64_t count, const void* x, void* out, float scale) {
  const F32 divisor = splat(scale);
  const auto rounded = [&](F32 v) __attribute__((always_inline)) {
    return round_e4m3(v / divisor) * divisor;
  };
  const int64_t i = full_vectors(
      count, [&](int64_t at, int)
                 __attribute__((always_inline)) { X::store(out, at, rounded(X::load(x, at))); });
  if (i < count) X::store_tail(out, i, count - i, rounded(X::load_tail(x, i, count - i)));
}

template <class X>
void round_row(int64_t columns, int64_t group, const void* x, void* out, const float* magnitude) {
  for (int64_t first = 0; first < columns; first += group) {
    const int64_t count = columns - first < group ? columns - first : group;
    const void* from = X::at(x, first);
    const float largest = magnitude != nullptr ? *magnitude : largest_of<X>(count, from);
    round_with<X>(count, from, X::at(out, first), scale_of(largest, kMaxE4M3));
  }
}

}  // namespace

void row_magnitudes(const RowMagnitudeProblem& p, const Parallel& parallel) {
  float (*run)(int64_t count, const void* x) = nullptr;
  with_type(p.type, [&]<class X>(X) { run = largest_of<X>; });
  for_each_row(parallel, p.batch * p.rows, p.columns * element_size(p.type), [&](int64_t i) {
    p.magnitude[i] = run(p.columns, offset(p.x, p.type, row_offset(p.x_strides, p.rows, i)));
  });
}

void round_to_float8(const Float8Problem& p, const Parallel& parallel) {
  using RoundRow =
      void (*)(int64_t columns, int64_t group, const void* x, void* out, const float* magnitude);
  RoundRow run = nullptr;
  with_type(p.type, [&]<class X>(X) { run = round_row<X>; });
  const int64_t group = p.group > 0 ? p.group : p.columns;
  for_each_row(parallel, p.batch * p.rows, p.columns * element_size(p.type), [&](int64_t i) {
    run(p.columns, group, offset(p.x, p.type, row_offset(p.x_strides, p.rows, i)),
        offset(p.out, p.type, row_offset(p.out_strides, p.rows, i)),
        p.magnitude != nullptr ? p.magnitude + i : nullptr);
  });
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
