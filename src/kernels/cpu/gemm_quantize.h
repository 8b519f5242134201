// Weights as a checkpoint stores them, row by row: scales of a matrix, and chunks of its rows in
// the bytes of a form, quantized if the source is not.
#pragma once

#include "kernels/cpu/gemm_activations.h"

namespace cachedit::kernels::CACHEDIT_ISA {

/// Elements of a row that are encoded at a time: whole groups, whole words.
inline constexpr int64_t kChunk = 128;

/// Which scale an element of a source has: scales[row / rows * groups + k / elements].
struct ScaleShape {
  int64_t rows;
  int64_t elements;
  int64_t groups;

  explicit ScaleShape(const WeightSpec& spec) : rows(1), elements(group_elements(spec)), groups(1) {
    if (elements > 0) groups = divide_up(spec.inputs, elements);
    if (elements == 0) elements = spec.inputs;
    if (spec.scale == WeightScale::kPerTensor) rows = int64_t{1} << 62;
    if (spec.scale == WeightScale::kPerBlock) rows = kScaleBlock;
  }
  int64_t index(int64_t row, int64_t k) const { return row / rows * groups + k / elements; }
};

CACHEDIT_INLINE bool is_quantized(SourceType type) {
  return type == SourceType::kInt8 || type == SourceType::kInt4 || type == SourceType::kE4M3;
}

CACHEDIT_INLINE ElementType float_type(SourceType type) {
  if (type == SourceType::kBFloat16) return ElementType::kBFloat16;
  return type == SourceType::kFloat16 ? ElementType::kFloat16 : ElementType::kFloat32;
}

/// Row of a floating-point source.
CACHEDIT_INLINE const void* float_row(const WeightSource& source, int64_t row) {
  return offset(source.data, float_type(source.type), row * source.stride);
}

/// Largest number of a quantized form.
CACHEDIT_INLINE float form_max(WeightForm form) {
  if (form == WeightForm::kE4M3WeightOnly) return kMaxE4M3;
  return form == WeightForm::kInt4WeightOnly ? 7.0f : 127.0f;
}

/// The scale of `rows` rows and elements [begin, end) of a floating-point source.
inline float choose_scale(const WeightSpec& spec, const WeightSource& source, int64_t row,
                          int64_t rows, int64_t begin, int64_t end) {
  F32 largest{};
  F32 poison{};
  for (int64_t r = row; r < row + rows; ++r) {
    const void* in = float_row(source, r);
    for (int64_t k = begin; k < end; k += kLanes) {
      const F32 v = load_padded(in, float_type(source.type), k, end);
      largest = max(largest, abs(v));
      poison = fma(v, F32{}, poison);
    }
  }
  const float scale = scale_of(reduce_max(largest) + reduce_add(poison), form_max(spec.form));
  if (group_elements(spec) == 0 || spec.group_scale == ElementType::kFloat32) return scale;
  uint16_t rounded[kLanes];
  store_bf16(rounded, splat(scale));
  return load_bf16(rounded)[0];
}

/// The codes of e4m3 numbers, in the low byte of each lane.
CACHEDIT_INLINE I32 e4m3_codes(F32 v) {
  const I32 magnitude = bits(v) & 0x7fffffff;
  const I32 normal = (magnitude >> 20) - (120 << 3);
  const I32 subnormal = round_to_int(abs(v) * 512.0f);
  const I32 is_subnormal = abs(v) < 0.015625f;
  const I32 is_nan = v != v;
  const I32 code = (is_subnormal & subnormal) | (~is_subnormal & normal);
  return (is_nan & 0x7f) | (~is_nan & code) | ((bits(v) >> 24) & 0x80);
}

/// Elements [k, k + count) of a row of a floating-point source, count at most kChunk, in the form's
/// bytes. Writes up to the next whole vector; groups begin at multiples of kLanes.
inline void encode_floats(const WeightSpec& spec, const WeightSource& source, int64_t row,
                          int64_t k, int64_t count, const float* scales, char* out) {
  const ElementType type = float_type(source.type);
  const ScaleShape shape(spec);
  const void* in = float_row(source, row);
  const F32 most = splat(form_max(spec.form));
  auto* bytes = reinterpret_cast<uint8_t*>(out);
  for (int64_t i = 0; i < count; i += kLanes) {
    F32 v = load_padded(in, type, k + i, k + count);
    if (spec.form == WeightForm::kFloat32) {
      store(reinterpret_cast<float*>(out) + i, v);
      continue;
    }
    if (spec.form == WeightForm::kBFloat16) {
      store_bf16(reinterpret_cast<uint16_t*>(out) + i, v);
      continue;
    }
    v = v * splat(1.0f / scales[shape.index(row, k + i)]);
    if (spec.form == WeightForm::kE4M3WeightOnly) {
      store_low(bytes + i, e4m3_codes(round_e4m3(v)));
      continue;
    }
    const I32 q = round_to_int(min(most, max(splat(0.0f) - most, v)));
    if (spec.form == WeightForm::kInt4WeightOnly) {
      for (int l = 0; l < kLanes; l += 2) {
        bytes[(i + l) / 2] = static_cast<uint8_t>((q[l] & 0xf) | (q[l + 1] << 4));
      }
    } else {
      store_low(bytes + i, q);
    }
  }
}

/// Bytes of `elements` elements of a form; whole ones.
CACHEDIT_INLINE int64_t form_bytes(WeightForm form, int64_t elements) {
  if (form == WeightForm::kFloat32) return elements * 4;
  if (form == WeightForm::kBFloat16) return elements * 2;
  return form == WeightForm::kInt4WeightOnly ? (elements + 1) / 2 : elements;
}

/// The same for any source; k is a multiple of kChunk. Bytes behind the last element are zero up to
/// the end of a chunk; a half byte may hold anything, as A is zero there.
inline void encode_chunk(const WeightSpec& spec, const WeightSource& source, int64_t row, int64_t k,
                         int64_t count, const float* scales, char* out) {
  if (is_quantized(source.type)) {
    const int64_t start = form_bytes(spec.form, row * source.stride + k);
    __builtin_memcpy(out, static_cast<const char*>(source.data) + start,
                     static_cast<size_t>(form_bytes(spec.form, count)));
  } else {
    encode_floats(spec, source, row, k, count, scales, out);
  }
  const int64_t used = form_bytes(spec.form, count);
  const int64_t all = form_bytes(spec.form, kChunk);
  if (used < all) __builtin_memset(out + used, 0, static_cast<size_t>(all - used));
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
