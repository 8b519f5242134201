// From the sums of a row of a register block to elements of the output: scales, bias, activation,
// residual, in fp32 while they are in the cache.
#pragma once

#include "kernels/cpu/gemm_activations.h"

namespace cachedit::kernels::CACHEDIT_ISA {

inline constexpr float kLog2E = 1.44269504f;

/// 1 / (1 + 2^t).
CACHEDIT_INLINE F32 logistic_of_exp2(F32 t) {
  // Limited where the result is 1e-38 anyway; NaN, the second operand, stays.
  return splat(1.0f) / (splat(1.0f) + exp2<ExpAccuracy::kFine>(min(splat(126.0f), t)));
}

CACHEDIT_INLINE F32 silu(F32 x) { return x * logistic_of_exp2(x * -kLog2E); }

/// (1 + tanh(u)) / 2 is the logistic function of 2 u.
CACHEDIT_INLINE F32 gelu_tanh(F32 x) {
  const F32 cubic = fma(x * x, splat(0.044715f), splat(1.0f));
  return x * logistic_of_exp2(x * cubic * (-2.0f * 0.797884561f * kLog2E));
}

/// Abramowitz and Stegun 7.1.26: erfc(z) is t p(t) exp(-z^2) with t = 1 / (1 + 0.3275911 z), z >=
/// 0, to 1.5e-7. Half of it is the weight of x < 0, so that the tail keeps its digits.
CACHEDIT_INLINE F32 gelu_erf(F32 x) {
  const F32 z = abs(x) * 0.707106781f;
  const F32 t = splat(1.0f) / fma(z, splat(0.3275911f), splat(1.0f));
  F32 p = splat(1.061405429f);
  p = fma(p, t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const F32 tail = p * t * 0.5f * exp2<ExpAccuracy::kFine>(z * z * -kLog2E);
  return x * select(x < F32{}, tail, splat(1.0f) - tail);
}

CACHEDIT_INLINE void activate(Activation activation, F32 (&values)[kVecs]) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kGeluTanh:
      for (F32& v : values) v = gelu_tanh(v);
      return;
    case Activation::kGeluErf:
      for (F32& v : values) v = gelu_erf(v);
      return;
    case Activation::kSilu:
      for (F32& v : values) v = silu(v);
      return;
  }
}

/// What a panel's columns share. Arrays are readable to the panel's end or null.
struct PanelEpilogue {
  int64_t column = 0;  ///< first of the panel
  int64_t count = 0;   ///< columns of the output among its kPanel
  const float* scales = nullptr;
  const float* bias = nullptr;
  const float* gate = nullptr;
};

/// kVecs vectors of a row of the output or the residual, from column `e.column` on.
CACHEDIT_INLINE void load_columns(const void* row, ElementType type, const PanelEpilogue& e,
                                  F32 (&values)[kVecs]) {
  for (int v = 0; v < kVecs; ++v) {
    if (v * kLanes >= e.count) {
      values[v] = F32{};
    } else {
      values[v] = load_padded(offset(row, type, e.column), type, v * kLanes, e.count);
    }
  }
}

CACHEDIT_INLINE void store_columns(void* row, ElementType type, const PanelEpilogue& e,
                                   const F32 (&values)[kVecs]) {
  if (e.count == kPanel) {
    for (int v = 0; v < kVecs; ++v) store_from_float(row, type, e.column + v * kLanes, values[v]);
    return;
  }
  alignas(64) float lanes[kPanel];
  for (int v = 0; v < kVecs; ++v) store(lanes + v * kLanes, values[v]);
  store_row(lanes, offset(row, type, e.column), type, e.count);
}

CACHEDIT_INLINE F32 to_value(F32 sum) { return sum; }
CACHEDIT_INLINE F32 to_value(I32 sum) { return to_float(sum); }

/// Writes one row of a panel; `sums` are its kPanel complete sums.
template <class Number>
inline void finish_row(const GemmProblem& p, const PanelEpilogue& e, int64_t row, float row_scale,
                       const Number* sums) {
  F32 values[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    values[v] = to_value(load(sums + v * kLanes));
    if (e.scales != nullptr) values[v] = values[v] * row_scale * load(e.scales + v * kLanes);
    if (e.bias != nullptr) values[v] = values[v] + load(e.bias + v * kLanes);
  }
  activate(p.activation, values);
  void* out = offset(p.out, p.out_type, row * p.out_stride);
  if (p.combine != Combine::kStore) {
    F32 base[kVecs];
    load_columns(offset(p.residual, p.out_type, row * p.residual_stride), p.out_type, e, base);
    for (int v = 0; v < kVecs; ++v) {
      if (p.combine == Combine::kMultiply) {
        values[v] = base[v] * values[v];
      } else if (e.gate != nullptr) {
        values[v] = fma(load(e.gate + v * kLanes), values[v], base[v]);
      } else {
        values[v] = base[v] + values[v];
      }
    }
  }
  store_columns(out, p.out_type, e, values);
}

/// Asks for the lines of the output and the residual that a register block is about to finish.
inline void prefetch_outputs(const GemmProblem& p, const PanelEpilogue& e, int64_t row,
                             int64_t rows) {
  const int64_t bytes = e.count * element_size(p.out_type);
  for (int64_t r = row; r < row + rows; ++r) {
    const char* out =
        static_cast<const char*>(offset(p.out, p.out_type, r * p.out_stride + e.column));
    for (int64_t i = 0; i < bytes; i += 64) prefetch(out + i);
    if (p.combine == Combine::kStore) continue;
    const char* base =
        static_cast<const char*>(offset(p.residual, p.out_type, r * p.residual_stride + e.column));
    for (int64_t i = 0; i < bytes; i += 64) prefetch(base + i);
  }
}

}  // namespace cachedit::kernels::CACHEDIT_ISA
