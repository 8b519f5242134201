// Rows of A as streams of the products' units: read in place where they already are, else converted
// or quantized into scratch, once per call.
#pragma once

#include "kernels/cpu/gemm_layout.h"
#include "kernels/cpu/low_bit.h"
#include "kernels/gemm.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Whether the rows of A are streams of the format's units with no partial words. Blocks of K start
/// at multiples of kScaleBlock elements of a segment, so the segments must meet at one.
template <class Format>
inline bool reads_in_place(const GemmProblem& p) {
  using Dot = typename Format::Dot;
  if (kDynamic<Format>) return false;
  const bool same = __is_same(Dot, DotF32) ? p.input_type == ElementType::kFloat32
                                           : p.input_type == ElementType::kBFloat16;
  if (!same) return false;
  if (p.input[1].columns > 0 && p.input[0].columns % kScaleBlock != 0) return false;
  return (p.input[0].columns + p.input[1].columns) % kWordElements<Format> == 0;
}

/// Bytes between packed rows: whole words, room for a vector behind the last element, and no
/// multiple of 2 KiB, since the rows of a block would then share few sets of a cache.
template <class Format>
CACHEDIT_INLINE int64_t packed_row_bytes(int64_t inputs) {
  const int64_t units = round_up(inputs, kWordElements<Format>) / Format::Dot::kPack;
  const int64_t bytes = round_up(units * 4 + 4 * kLanes, 64);
  return bytes % 2048 == 0 ? bytes + 64 : bytes;
}

/// kLanes elements from `index` on of an array of `count`, zero behind its end.
CACHEDIT_INLINE F32 load_padded(const void* data, ElementType type, int64_t index, int64_t count) {
  if (index + kLanes <= count) return load_as_float(data, type, index);
  alignas(64) float lanes[kLanes];
  load_row(offset(data, type, index), type, count - index, lanes);
  return load(lanes);
}

CACHEDIT_INLINE const void* segment_row(const GemmProblem& p, int segment, int64_t row) {
  return offset(p.input[segment].data, p.input_type, row * p.input[segment].stride);
}

/// Largest magnitude of a row, or the one that stands for it; NaN if an element is NaN or infinite.
inline float row_magnitude(const GemmProblem& p, int64_t row) {
  if (p.input_magnitude != nullptr) return p.input_magnitude[row];
  F32 largest{};
  F32 poison{};
  for (int s = 0; s < 2; ++s) {
    const void* in = segment_row(p, s, row);
    for (int64_t i = 0; i < p.input[s].columns; i += kLanes) {
      const F32 v = load_padded(in, p.input_type, i, p.input[s].columns);
      largest = max(largest, abs(v));
      poison = fma(v, F32{}, poison);
    }
  }
  return reduce_max(largest) + reduce_add(poison);
}

/// A row in the elements of the format's product, integers shifted to 1..255. Up to kLanes - 1
/// elements behind a segment are written, which the next one or the padding replaces.
template <class Format>
inline void pack_row(const GemmProblem& p, int64_t row, float scale, char* out) {
  using Dot = typename Format::Dot;
  const F32 inverse = splat(1.0f / scale);
  int64_t done = 0;
  for (int s = 0; s < 2; ++s) {
    const void* in = segment_row(p, s, row);
    for (int64_t i = 0; i < p.input[s].columns; i += kLanes) {
      const F32 v = load_padded(in, p.input_type, i, p.input[s].columns);
      if constexpr (kDynamic<Format>) {
        auto* elements = reinterpret_cast<typename Dot::ElementA*>(out);
        store_low(elements + done + i, round_to_int(v * inverse) + 128);
      } else {
        store_elements(reinterpret_cast<typename Dot::Element*>(out) + done + i, v);
      }
    }
    done += p.input[s].columns;
  }
  auto* elements = reinterpret_cast<typename Dot::Element*>(out);
  const int64_t padded = round_up(done, kWordElements<Format>);
  for (int64_t i = done; i < padded; ++i) elements[i] = 0;
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
